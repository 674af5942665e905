"""A stage as programs: F makes its results, B the cotangents of what it reads, W those of its weights, BW both.

Its expression is traced once, over placeholders, and cut (`cutting.py`). Gradients of microbatches are added up in the
program that makes them, those of 16-bit floats in fp32. On a mesh each device adds up its own parts; the sums over
devices are formed once a step, of what was added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.dtypes import DType, fp32
from tessera.lazy.devices import is_mesh
from tessera.lazy.layouts import Layout
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures.building import apply
from tessera.ops.collective.records import CONSTRAIN
from tessera.sharding.partitioning.partition import layouts_as_made
from tessera.sharding.pipeline.cutting import CutExpressions, Values, computed

_NOTHING: Final[Values] = {}


@dataclass(frozen=True)
class StageTrace:
    """A stage's expressions. `inputs` stand for what a microbatch brings, `parameters` for weights, and `seeds` for the
    cotangents of results, as far as there are any. `to_inputs` and `to_parameters` are the cotangents that are wanted.
    """

    inputs: tuple[Leaf, ...]
    parameters: tuple[Leaf, ...]
    seeds: tuple[Leaf, ...]
    results: tuple[Node, ...]
    to_inputs: tuple[Node, ...]
    to_parameters: tuple[Node, ...]


class StagePrograms:
    """The programs of a traced stage. `split` has B and W apart. `laid` says how gradients lie at the end of a step,
    None for those on one device.
    """

    def __init__(self, trace: StageTrace, laid: Sequence[Layout | None], *, split: bool) -> None:
        self.trace = trace
        self._layouts = tuple(laid)
        self._varying = (*trace.inputs, *trace.seeds)
        wide = [_widened(_taken_apart(gradient)) for gradient in trace.to_parameters]
        self._forward = CutExpressions(trace.results, [*trace.to_inputs, *wide], self._varying)
        self._split = split
        self._backward: CutExpressions | None = None
        self._sums: tuple[Leaf, ...] = ()
        self._added: list[Node] = []

    def forward(self, values: Values) -> tuple[list[Leaf], Values]:
        """F over inputs and parameters: the results, and what the backward programs read of it."""
        return self._forward.run(values)

    def inputs(self, values: Values, saved: Values) -> tuple[list[Leaf], Values]:
        """B: the cotangents of inputs, and what W reads beside."""
        if self._backward is None:
            nodes, count = self._forward.second(), len(self.trace.to_inputs)
            # What a microbatch has saved varies as its inputs do.
            self._backward = CutExpressions(nodes[:count], nodes[count:], (*self._varying, *saved))
        return self._backward.run({**values, **saved})

    def weights(self, values: Values, sums: Sequence[Leaf]) -> list[Leaf]:
        """W: the gradients of a microbatch, added to those of the ones before."""
        nodes = (
            self._forward.second()[len(self.trace.to_inputs) :] if self._backward is None else self._backward.second()
        )
        return self._accumulated(nodes, values, sums)

    def both(self, values: Values, sums: Sequence[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
        """BW: the cotangents of inputs, and the gradients added up."""
        count = len(self.trace.to_inputs)
        nodes = self._forward.second()
        made = self._accumulated(nodes[count:], values, sums, nodes[:count])
        return made[:count], made[count:]

    def _accumulated(
        self, gradients: Sequence[Node], values: Values, sums: Sequence[Leaf], beside: Sequence[Node] = ()
    ) -> list[Leaf]:
        if not sums:
            return computed([*beside, *_in_parts(gradients)], values)
        if not self._sums:
            self._sums = tuple(Placeholder(each.structure) for each in sums)
            pairs = zip(gradients, self._sums, strict=True)
            self._added = _in_parts([leaf_node(total) + gradient for gradient, total in pairs])
        return computed([*beside, *self._added], {**values, **dict(zip(self._sums, sums, strict=True))})

    def finished(self, sums: Sequence[Leaf], parts: int) -> list[Leaf]:
        """The gradients of a step, in the dtypes and layouts of the weights: sums over microbatches, divided by
        `parts`. What is pending is summed over devices here.
        """
        nodes = []
        for total, gradient, laid in zip(sums, self.trace.to_parameters, self._layouts, strict=True):
            node: Any = leaf_node(total)
            node = node if laid is None else apply(CONSTRAIN, (laid,), (node,))
            node = node if parts == 1 else node / parts
            nodes.append(node if node.dtype is gradient.dtype else node.to(gradient.dtype))
        return computed(nodes, _NOTHING)


def _taken_apart(gradient: Node) -> Node:
    """A gradient as it comes, before it is laid as its weight is."""
    structure, leaves = gradient.state
    operator = structure.operator
    if operator is None or operator.name != CONSTRAIN.name or not isinstance(structure.attributes[0], Layout):
        return gradient
    return Node((structure.operands[0], leaves))


def _in_parts(gradients: Sequence[Node]) -> list[Node]:
    """Gradients of which each device of a mesh keeps its part: they lie as they are made, with sums pending."""
    on_mesh = [gradient for gradient in gradients if is_mesh(gradient.structure.device)]
    laid = iter(layouts_as_made(joined(on_mesh)[0])) if on_mesh else iter(())
    return [apply(CONSTRAIN, (next(laid),), (each,)) if is_mesh(each.structure.device) else each for each in gradients]


def _widened(gradient: Node) -> Node:
    given: Any = gradient
    wide: Node = given.to(fp32) if _is_narrow(gradient.dtype) else given
    return wide


def _is_narrow(dtype: DType) -> bool:
    return dtype.kind == "float" and dtype.itemsize < fp32.itemsize
