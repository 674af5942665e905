"""A partition: nodes of a graph that one plan computes, a plan for each layout of its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from tessera.errors import CompileError, IRError, TesseraError, UnsupportedTargetError
from tessera.integrations.torch.binding import BoundPartition, PartitionWork
from tessera.integrations.torch.extents import Extents, UnknownSize
from tessera.integrations.torch.leaves import FrozenInput
from tessera.integrations.torch.mapping import Unsupported
from tessera.integrations.torch.nodes import tensors_of
from tessera.integrations.torch.options import CompileOptions
from tessera.lazy.sources import from_torch

MOST_LAYOUTS = 1 << 10
"""Layouts of inputs that a partition remembers at one time."""

Values: TypeAlias = Sequence[Any]


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
        self._bound: dict[Any, BoundPartition | None] = {}

    def __call__(self, *values: Any) -> Sequence[Any]:
        """The outputs, of the inputs' values."""
        return self.run(values)

    def run(self, values: Values) -> Sequence[Any]:
        """As a call, of values in a sequence. On the path of every call of a compiled model."""
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
            bound = self._bind(key, values, leaves)
        if bound is not None:
            try:
                return bound(values, leaves)
            except (CompileError, IRError, UnsupportedTargetError) as error:
                self._tell(error)
                self._bound[key] = None
        results = in_torch(self.nodes, self.inputs, self.outputs, values)
        for place, node in enumerate(self.outputs):
            target = self._work.targets.get(node)
            if target is not None:
                results[place] = values[target].copy_(results[place])
        return results

    def _bind(self, key: Any, values: Values, leaves: Sequence[Any]) -> BoundPartition | None:
        """What computes this layout of inputs; None where a row does not take these extents, and torch computes
        them.
        """
        if len(self._bound) >= MOST_LAYOUTS:
            self._bound.clear()
        extents = Extents()
        for node, value in zip(self.inputs, values, strict=True):
            extents.bind(node.meta.get("val"), value)
        bound: BoundPartition | None
        try:
            bound = BoundPartition(self._work, leaves, extents, self._options.numerics)
        except (Unsupported, UnknownSize):
            bound = None
        except TesseraError as error:
            self._tell(error)
            bound = None
        self._bound[key] = bound
        return bound

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
        known[node] = torch_call(node)(
            *fx.map_arg(node.args, known.__getitem__), **fx.map_arg(node.kwargs, known.__getitem__)
        )
    return [known[node] for node in outputs]


def torch_call(node: fx.Node) -> Callable[..., Any]:
    """torch's function for a node. Where strides differ from those that the graph was traced with, no view may exist
    of which one was.
    """
    target: Callable[..., Any] = _RESHAPED.get(node.target, node.target)
    return target


_RESHAPED: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}
