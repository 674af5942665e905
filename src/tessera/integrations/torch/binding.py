"""A partition for one layout of its inputs: the plan's leaves out of the inputs', and torch tensors of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tessera.compiler.entry import plan_over
from tessera.handle import Tensor
from tessera.integrations.torch.extents import Extents
from tessera.integrations.torch.layouts import Layout, layout_of
from tessera.integrations.torch.mapping import MAPPING
from tessera.integrations.torch.nodes import tensors_of, wanted_of
from tessera.integrations.torch.options import Numerics
from tessera.lazy import evaluation, interning, policy, writes
from tessera.lazy.export import memory_of
from tessera.lazy.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structure import Plan, Structure
from tessera.ops.layout import views
from tessera.runtime.plan import BoundPlan


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


@dataclass(frozen=True)
class _Computed:
    """An output that the plan computes, as result `number`. `order` says which of the output's dimensions the result's
    are, None where they are the same.
    """

    number: int
    order: tuple[int, ...] | None
    layout: Layout | None
    """How the output has to lie; None where any strides will do."""
    target: int | None
    """The place of the input whose memory it is written to."""


@dataclass(frozen=True)
class _Given:
    """An output that has the elements of input `place`, in memory of its own or of the input `target`."""

    place: int
    layout: Layout
    target: int | None


class BoundPartition:
    """What a partition does for one layout of its inputs. Thread-safe."""

    def __init__(self, work: PartitionWork, leaves: Sequence[Any], extents: Extents, numerics: Numerics) -> None:
        """`leaves` are those of the inputs, and the numbers among them. Raises Unsupported and UnknownSize."""
        self._numerics = numerics
        made, places = _written(work, leaves, extents)
        pending: list[Node] = []
        self._outputs: list[_Computed | _Given] = []
        for output in work.outputs:
            tensor: Tensor = made[output]
            target = work.targets.get(output)
            layout = layout_of(tensors_of(output if target is None else work.inputs[target])[0], extents.of)
            if tensor.structure.kind == "buffer":
                self._outputs.append(_Given(places[tensor.leaves[0]], layout, target))
                continue
            order = layout.order if layout.is_turned else None
            self._outputs.append(_Computed(len(pending), order, layout if output in work.exact else None, target))
            pending.append(tensor if order is None else views.transpose(tensor, order))
        self._structure: Structure | None = None
        if pending:
            self._plan_for(pending, places)
            self._targets = self._found_targets(leaves)
        self._writing: tuple[Plan, Plan] | None = None
        self._finish: tuple[tuple[Structure, ...], list[_Finish]] | None = None

    def _plan_for(self, pending: Sequence[Node], places: Mapping[Leaf, int]) -> None:
        structure, below = pending[0].state if len(pending) == 1 else joined(pending)
        numbers = {leaf: number for number, leaf in enumerate(below)}
        self._structure = structure
        self._leaves: list[tuple[int, Leaf | None]] = [
            (places[leaf], None) if leaf in places else (0, leaf) for leaf in below
        ]
        self._parts = [(node.structure, [numbers[leaf] for leaf in node.leaves]) for node in pending]

    def _found_targets(self, leaves: Sequence[Any]) -> dict[int, tuple[int, Structure]]:
        """The leaf of the plan whose memory a result is written to, and how that lies, by the result's number. Leaves
        that nothing reads come after the others.
        """
        numbers = {place: number for number, (place, own) in enumerate(self._leaves) if own is None}
        found: dict[int, tuple[int, Structure]] = {}
        for output in self._outputs:
            if not isinstance(output, _Computed) or output.target is None:
                continue
            if output.target not in numbers:
                numbers[output.target] = len(self._leaves)
                self._leaves.append((output.target, None))
            structure = leaves[output.target].structure
            found[output.number] = (
                numbers[output.target],
                structure if output.order is None else _turned(structure, output.order),
            )
        return found

    def __call__(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs, of the inputs' values and their leaves."""
        structure = self._structure
        results: Sequence[Leaf] = ()
        if structure is not None:
            given = [leaves[place] if own is None else own for place, own in self._leaves]
            results = self._run(structure, given)
        found = tuple([leaf.structure for leaf in results])
        known = self._finish
        if known is None or known[0] != found:
            known = self._finish = (found, self._finishes(results))
        return [finish(values, results) for finish in known[1]]

    def _run(self, structure: Structure, given: list[Leaf]) -> Sequence[Leaf]:
        plan = structure.plan
        if self._numerics == "default" and plan is not None and policy.is_current(plan.threads):
            if evaluation.before_run is not None:
                evaluation.before_run()
            if self._targets:
                plan = self._over(structure, plan)
            found: Sequence[Leaf] = plan.run(tuple(given))
            return found
        parts = [Node((part, tuple([given[number] for number in numbers]))) for part, numbers in self._parts]
        if self._numerics == "default":
            evaluation.evaluate(parts)
        else:
            with policy.policy(self._numerics):
                evaluation.evaluate(parts)
        return [part.leaves[0] for part in parts]

    def _over(self, structure: Structure, plan: Plan) -> Plan:
        """The plan that writes to the targets, in the place of the structure's own; that one while it is tuned."""
        known = self._writing
        if known is None or known[0] is not plan:
            over = plan_over(structure, self._targets) if isinstance(plan, BoundPlan) else plan
            known = self._writing = plan, over
        return known[1]

    def _finishes(self, results: Sequence[Leaf]) -> list[_Finish]:
        """How torch tensors are made of the plan's results, which lie the same way in every call."""
        finishes: list[_Finish] = []
        owners: set[int] = set()
        for output in self._outputs:
            if isinstance(output, _Given):
                finishes.append(_copy(output))
                continue
            leaf = results[output.number]
            if output.target is not None:
                finishes.append(_store(output, output.target))
                continue
            shared = id(leaf.owner) in owners or isinstance(leaf.owner, torch.Tensor)
            owners.add(id(leaf.owner))
            finishes.append(_export(output, leaf.structure, shared))
        return finishes


_Finish = Callable[[Sequence[Any], Sequence[Leaf]], torch.Tensor]


def _copy(output: _Given) -> _Finish:
    place, layout, target = output.place, output.layout, output.target
    if target is not None:
        return lambda values, results: values[target].copy_(values[place])
    return lambda values, results: layout.copy_of(values[place])


def _store(output: _Computed, target: int) -> _Finish:
    """Sees to it that an input has a result's elements, and gives the input."""
    number, order = output.number, output.order

    def finish(values: Sequence[Any], results: Sequence[Leaf]) -> torch.Tensor:
        tensor: torch.Tensor = values[target]
        leaf = results[number]
        if tensor is leaf.owner:  # the plan has written there
            writes.note(tensor)
        else:
            turned = leaf if order is None else leaf.view(_turned_back(leaf.structure, order), leaf.address)
            tensor.copy_(memory_of(turned))
        return tensor

    return finish


def _export(output: _Computed, structure: Structure, shared: bool) -> _Finish:
    """Makes a tensor over the memory of a result; over memory of its own where the result's is another's, too, or lies
    in another way.
    """
    number, layout = output.number, output.layout
    turned = None if output.order is None else _turned_back(structure, output.order)

    def finish(values: Sequence[Any], results: Sequence[Leaf]) -> torch.Tensor:
        leaf = results[number]
        tensor = memory_of(leaf if turned is None else leaf.view(turned, leaf.address))
        if shared:
            tensor = tensor.clone()
        return tensor if layout is None else layout.fitted(tensor)

    return finish


def _turned(structure: Structure, order: Sequence[int]) -> Structure:
    """The structure of memory whose dimensions are taken in another order."""
    shape, strides = (tuple(each[axis] for axis in order) for each in (structure.shape, structure.strides))
    return interning.buffer(shape, strides, structure.dtype)


def _turned_back(structure: Structure, order: Sequence[int]) -> Structure:
    """The structure of a result with dimension `order[d]` where it has dimension d."""
    return _turned(structure, [order.index(axis) for axis in range(len(order))])


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
        known[node] = MAPPING[node.target](wanted_of(node, extents.of, node in work.parts), arguments, options)
    return known, places
