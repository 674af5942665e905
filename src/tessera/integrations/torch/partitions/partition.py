"""A partition: nodes of a graph that one plan computes, a plan for each layout of its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import fx

from tessera.errors import CompileError, IRError, TesseraError, UnsupportedTargetError
from tessera.integrations.torch.graphs.calls import torch_function
from tessera.integrations.torch.graphs.extents import Extents, UnknownSize
from tessera.integrations.torch.graphs.nodes import tensors_of
from tessera.integrations.torch.mapping import Unsupported
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions import background
from tessera.integrations.torch.partitions.binding import BoundPartition, PartitionWork
from tessera.integrations.torch.partitions.leaves import FrozenInput
from tessera.integrations.torch.partitions.rebinding import PartitionRecording, ReboundPartition, recorded
from tessera.lazy import policy
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.leaves.sources import from_torch

MOST_LAYOUTS = 1 << 10
"""Layouts of inputs that a partition remembers at one time."""

MOST_RECORDINGS = 16
"""Recordings that a partition tries before it binds anew."""

MOST_ATTEMPTS = 32
"""Recordings that a partition makes in all: where sizes decide much, they hold for few others."""

Values: TypeAlias = Sequence[Any]

AnyBound: TypeAlias = BoundPartition | ReboundPartition
"""What computes a partition for one layout of its inputs."""


class BackendWarning(UserWarning):
    """Something of Tessera's is broken, and torch computes in its place."""


class Partition:
    """Nodes that Tessera computes together. `inputs` and `outputs` are nodes of the graph, too; those in `frozen` are
    the same tensors in every call, and outputs in `exact` lie in memory as torch's own would. Outputs in `targets` are
    written to the memory of these inputs, and nodes in `parts` put a part into what is.
    """

    def __init__(
        self,
        nodes: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
        frozen: frozenset[fx.Node],
        exact: frozenset[fx.Node],
        options: CompileOptions,
        targets: Mapping[fx.Node, fx.Node],
        parts: frozenset[fx.Node],
    ) -> None:
        self.nodes, self.outputs = tuple(nodes), tuple(outputs)
        written = {node: targets[node] for node in outputs if node in targets}
        self.inputs = inputs_of(nodes, written.values())
        places = {node: self.inputs.index(target) for node, target in written.items()}
        self._work = PartitionWork(self.nodes, self.inputs, self.outputs, exact, places, parts)
        self._options = options
        self._readers = [
            None if not tensors_of(node) else FrozenInput().leaf if node in frozen else from_torch
            for node in self.inputs
        ]
        self._reads_tensors = None not in self._readers
        self.frozen = tuple(node in frozen for node in self.inputs)
        self._bound: dict[Any, AnyBound | None] = {}
        self._recordings: tuple[PartitionRecording, ...] = ()
        self._attempts = 0
        self._failure: TesseraError | None = None

    def __call__(self, *values: Any) -> Sequence[Any]:
        """The outputs, of the inputs' values."""
        return self.run(values)

    def leaf(self, place: int, value: Any) -> Any:
        """What the plan reads of an input; a number is what it is."""
        read = self._readers[place]
        return value if read is None else read(value)

    def bound(self, values: Values) -> BoundPartition | None:
        """What computes the outputs for inputs that lie as these; None where torch has to."""
        key, leaves, found = self._found(values)
        if isinstance(found, ReboundPartition):
            found = self._bind(key, values, leaves)
        return found if isinstance(found, BoundPartition) else None

    def run(self, values: Values) -> Sequence[Any]:
        """As a call, of values in a sequence. On the path of every call of a compiled model."""
        key, leaves, bound = self._found(values)
        if bound is not None:
            try:
                results = bound(values, leaves)
            except (CompileError, IRError, UnsupportedTargetError) as error:
                self._tell(error)
                self._bound[key] = None
            else:
                if bound.is_new:
                    bound.is_new = False
                    self._record(leaves)
                return results
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._tell(failure)
        results = in_torch(self.nodes, self.inputs, self.outputs, values)
        for place, node in enumerate(self.outputs):
            target = self._work.targets.get(node)
            if target is not None:
                results[place] = values[target].copy_(results[place])
        return results

    def _found(self, values: Values) -> tuple[Any, list[Any], AnyBound | None]:
        leaves: list[Any]
        if self._reads_tensors:
            leaves = [read(value) for read, value in zip(self._readers, values)]  # type: ignore[misc]  # noqa: B905
            key = tuple([leaf.structure for leaf in leaves])
        else:
            leaves = [value if read is None else read(value) for read, value in zip(self._readers, values, strict=True)]
            key = tuple(
                [leaf if read is None else leaf.structure for read, leaf in zip(self._readers, leaves, strict=True)]
            )
        try:
            bound = self._bound[key]
        except KeyError:
            return key, leaves, self._rebind(key) or self._bind(key, values, leaves)
        if bound is None or bound.is_current:
            return key, leaves, bound
        return key, leaves, self._bind(key, values, leaves)

    def _rebind(self, key: Any) -> ReboundPartition | None:
        """What computes this layout of inputs, as was recorded for others; None where it was not."""
        recordings = self._recordings
        if not recordings or not policy.is_current(None):
            return None
        compiles = self._options.cold != "eager"
        for recording in recordings:
            try:
                found = recording.bind(key, compiles) if recording.is_current else None
            except (CompileError, IRError, UnsupportedTargetError):
                return None  # binding as usual says what is wrong
            if found is not None:
                if recording is not recordings[0]:
                    self._recordings = (recording, *[each for each in recordings if each is not recording])
                if len(self._bound) >= MOST_LAYOUTS:
                    self._bound.clear()
                self._bound[key] = found
                return found
        return None

    def _record(self, leaves: Sequence[Any]) -> None:
        """Notes what this layout of inputs, just bound, has in common with others, once there are such."""
        if len(self._bound) < 2 or self._options.tune != "cached":
            return
        if self._options.own_policy or not policy.is_current(None):
            return
        current = [each for each in self._recordings if each.is_current]
        if self._recordings and not current:  # schedules have changed, and with them what sizes decide
            self._attempts = 0
        if self._attempts >= MOST_ATTEMPTS:
            return
        self._attempts += 1
        found = recorded(self._work, leaves, self._options)
        self._recordings = tuple([*([] if found is None else [found]), *current][:MOST_RECORDINGS])

    def _bind(self, key: Any, values: Values, leaves: Sequence[Any]) -> AnyBound | None:
        """What computes this layout of inputs; None where a row does not take these extents, and torch computes
        them.
        """
        if len(self._bound) >= MOST_LAYOUTS:
            self._bound.clear()
        extents = Extents()
        for node, value in zip(self.inputs, values, strict=True):
            extents.bind(node.meta.get("val"), value)
        if self._options.cold == "eager":
            self._bound[key] = None
            # Of the inputs only how they lie: their memory is not to be kept.
            shapes = [Placeholder(leaf.structure) if isinstance(leaf, Leaf) else leaf for leaf in leaves]
            background.start(lambda: self._compile(key, shapes, extents))
            return None
        bound: BoundPartition | None
        try:
            bound = BoundPartition(self._work, leaves, extents, self._options)
        except (Unsupported, UnknownSize):
            bound = None
        except TesseraError as error:
            self._tell(error)
            bound = None
        self._bound[key] = bound
        return bound

    def _compile(self, key: Any, leaves: Sequence[Any], extents: Extents) -> None:
        """Compiles what computes a layout of inputs, beside the program. What is wrong is told in a later call."""
        try:
            bound = BoundPartition(self._work, leaves, extents, self._options)
            bound.prepare()
            bound.is_new = False
            self._record(leaves)
        except (Unsupported, UnknownSize):
            return
        except TesseraError as error:
            self._failure = error
            return
        self._bound[key] = bound

    def _tell(self, error: TesseraError) -> None:
        """Warns that torch computes in the place of what is broken; raises the error where no fallback is allowed."""
        if self._options.fallback == "error":
            raise error
        warnings.warn(f"{len(self.nodes)} nodes in one partition: {error}; torch computes them", BackendWarning, 2)


def inputs_of(nodes: Sequence[fx.Node], more: Iterable[fx.Node] = ()) -> tuple[fx.Node, ...]:
    """What nodes read that is not among them, and `more`, each once, in the graph's order."""
    inside = set(nodes)
    found = {operand for node in nodes for operand in node.all_input_nodes if operand not in inside}
    return tuple(sorted(found.union(more)))


def in_torch(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], values: Values
) -> list[Any]:
    """The outputs of nodes by torch's operators."""
    known = dict(zip(inputs, values, strict=True))
    for node in nodes:
        known[node] = torch_function(node)(
            *fx.map_arg(node.args, known.__getitem__), **fx.map_arg(node.kwargs, known.__getitem__)
        )
    return [known[node] for node in outputs]
