"""A partition for one layout of its inputs: the plan's leaves out of the inputs', and torch tensors of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tessera.compiler.entry import plan_over, prepared, tune
from tessera.handle import Tensor
from tessera.integrations.torch.graphs.extents import Extents
from tessera.integrations.torch.graphs.nodes import tensors_of, wanted_of
from tessera.integrations.torch.mapping import row_of
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.layouts import layout_of
from tessera.integrations.torch.partitions.outputs import Computed, Given, Outputs, turned_structure
from tessera.lazy import evaluation, policy
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures.structure import Plan, Structure
from tessera.ops.layout import views
from tessera.runtime.plans.plan import BoundPlan


@dataclass(frozen=True)
class PartitionWork:
    """What a partition does: nodes of a graph, and those that it reads and gives."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    exact: frozenset[fx.Node]
    """Outputs that lie in memory as torch's own would."""
    targets: Mapping[fx.Node, int]
    """Outputs that are written to the memory of an input, with its place."""
    parts: frozenset[fx.Node]
    """Nodes that put a part into what is written to the memory it comes from."""


class WrittenPartition:
    """A partition as lazy tensors over placeholders of its inputs' leaves: the structure that is planned, which of the
    inputs' leaves each of its own is, and how outputs become torch tensors.
    """

    def __init__(self, work: PartitionWork, leaves: Sequence[Any], extents: Extents) -> None:
        """`leaves` are those of the inputs, and the numbers among them. Raises Unsupported and UnknownSize."""
        made, places = _written(work, leaves, extents)
        pending: list[Node] = []
        outputs: list[Computed | Given] = []
        for output in work.outputs:
            tensor: Tensor = made[output]
            target = work.targets.get(output)
            layout = layout_of(tensors_of(output if target is None else work.inputs[target])[0], extents.of)
            if tensor.structure.kind == "buffer":
                outputs.append(Given(places[tensor.leaves[0]], layout, target))
                continue
            order = layout.order if layout.is_turned else None
            outputs.append(Computed(len(pending), order, layout if output in work.exact else None, target))
            pending.append(tensor if order is None else views.transpose(tensor, order))
        self.outputs = Outputs(outputs)
        self.structure: Structure | None = None
        self.leaves: list[tuple[int, Leaf | None]] = []
        """The leaves of the plan: the place of the input that each is of, or a leaf of the partition's own."""
        self.parts: list[tuple[Structure, list[int]]] = []
        """The structure of each computed output, and the numbers of its leaves."""
        if pending:
            self._join(pending, places)

    def _join(self, pending: Sequence[Node], places: Mapping[Leaf, int]) -> None:
        self.structure, below = pending[0].state if len(pending) == 1 else joined(pending)
        numbers = {leaf: number for number, leaf in enumerate(below)}
        self.leaves = [(places[leaf], None) if leaf in places else (0, leaf) for leaf in below]
        self.parts = [(node.structure, [numbers[leaf] for leaf in node.leaves]) for node in pending]

    def targets(self, inputs: Sequence[Structure | None]) -> dict[int, tuple[int, Structure]]:
        """The leaf of the plan whose memory a result is written to, and how that lies, by the result's number, of the
        structures of the inputs. Leaves that nothing reads come after the others.
        """
        numbers = {place: number for number, (place, own) in enumerate(self.leaves) if own is None}
        found: dict[int, tuple[int, Structure]] = {}
        for output in self.outputs.outputs:
            if not isinstance(output, Computed) or output.target is None:
                continue
            if output.target not in numbers:
                numbers[output.target] = len(self.leaves)
                self.leaves.append((output.target, None))
            structure = inputs[output.target]
            assert structure is not None, "a result is written to a number"
            found[output.number] = (
                numbers[output.target],
                structure if output.order is None else turned_structure(structure, output.order),
            )
        return found


class BoundPartition:
    """What a partition does for one layout of its inputs. Thread-safe."""

    def __init__(self, work: PartitionWork, leaves: Sequence[Any], extents: Extents, options: CompileOptions) -> None:
        """`leaves` are those of the inputs, and the numbers among them. Raises Unsupported and UnknownSize."""
        self._options = options
        self._own_policy = options.own_policy
        written = WrittenPartition(work, leaves, extents)
        self.outputs, self._structure, self._parts = written.outputs, written.structure, written.parts
        self._targets: Mapping[int, tuple[int, Structure]] = {}
        if self._structure is not None:
            structures = [leaf.structure if isinstance(leaf, Leaf) else None for leaf in leaves]
            self._targets = written.targets(structures)
        self._leaves = written.leaves
        if self._structure is not None:
            self._tune()
        self._writing: tuple[Plan, Plan] | None = None
        self.is_new = True
        """Whether it has not run yet; who looks at it sets it."""

    @property
    def is_current(self) -> bool:
        """Whether it does what it would if it were made now: always, since it asks for its plan at every call."""
        return True

    def __call__(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs, of the inputs' values and their leaves."""
        structure = self._structure
        results: Sequence[Leaf] = ()
        if structure is not None:
            given = [leaves[place] if own is None else own for place, own in self._leaves]
            results = self._run(structure, given)
        return self.outputs(values, results)

    def _run(self, structure: Structure, given: list[Leaf]) -> Sequence[Leaf]:
        plan = structure.plan
        if not self._own_policy and plan is not None and policy.is_current(plan.threads):
            if evaluation.before_run is not None:
                evaluation.before_run()
            if self._targets:
                plan = self._over(structure, plan)
            found: Sequence[Leaf] = plan.run(tuple(given))
            return found
        parts = [Node((part, tuple([given[number] for number in numbers]))) for part, numbers in self._parts]
        with self._options.in_force():
            evaluation.evaluate(parts)
        return [part.leaves[0] for part in parts]

    def _tune(self) -> None:
        """Measures the kernels where options say so. One that no candidate of runs keeps its schedule, and is told."""
        budget = self._options.tune
        if budget == "cached" or self._structure is None:
            return
        with self._options.in_force():
            tune(self._structure, None if budget == "on_device" else float(budget))

    def prepare(self) -> None:
        """Compiles what calls run. Raises what compiling raises."""
        if self._structure is None:
            return
        with self._options.in_force():
            plan = prepared(self._structure)
        if self._targets:
            self._over(self._structure, plan)

    def plan(self) -> Plan | None:
        """A plan of its own that does what calls do; None where outputs are inputs alone."""
        if self._structure is None:
            return None
        with self._options.in_force():
            return plan_over(self._structure, self._targets)

    @property
    def leaves(self) -> Sequence[tuple[int, Leaf | None]]:
        """The leaves of the plan: the place of the input that each is of, or a leaf of the partition's own."""
        return () if self._structure is None else self._leaves

    def _over(self, structure: Structure, plan: Plan) -> Plan:
        """The plan that writes to the targets, in the place of the structure's own; that one while it is tuned."""
        known = self._writing
        if known is None or known[0] is not plan:
            over = plan_over(structure, self._targets) if isinstance(plan, BoundPlan) else plan
            known = self._writing = plan, over
        return known[1]


def _written(
    work: PartitionWork, leaves: Sequence[Any], extents: Extents
) -> tuple[dict[fx.Node, Any], dict[Leaf, int]]:
    """The nodes as lazy tensors over placeholders, and which input each placeholder stands for."""
    places: dict[Leaf, int] = {}
    known: dict[fx.Node, Any] = {}
    for place, (node, leaf) in enumerate(zip(work.inputs, leaves, strict=True)):
        known[node] = leaf
        if isinstance(leaf, Leaf):
            placeholder = Placeholder(leaf.structure)
            places[placeholder] = place
            known[node] = leaf_node(placeholder)
    for node in work.nodes:
        arguments: Any = fx.map_arg(node.args, known.__getitem__)
        options: Any = fx.map_arg(node.kwargs, known.__getitem__)
        row = row_of(node.target)
        assert row is not None, f"a node of a partition without a row: {node.target}"
        asked = wanted_of(node, extents.of, node in work.parts, row.asks_for_strides) if row.asks else None
        known[node] = row(asked, arguments, options)
    return known, places
