"""The order in which results of maps lie in memory: that of what they are made from, where all of that agrees.

    relu(image with channels last)  ->  an image with channels last         x.T + 1  ->  a transposed result

So nothing is transposed on the way, as in torch. What somebody reads in one piece, or row by row, is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tessera.compiler.bind.arrays import Shape, View
from tessera.compiler.graph.program import Item, KernelItem, LayoutItem
from tessera.rewrite.fusion.alignment import Alignment
from tessera.scheduling.binding.axes import Strides, domain_strides
from tessera.scheduling.families.registry import family_of_region

Readers = Mapping[int, Sequence[Item]]
"""Value -> what reads it."""


def shared_order(shape: Shape, operands: Iterable[tuple[View, Alignment]]) -> Strides | None:
    """The strides of a dense tensor of `shape` whose dimensions lie in the order that all operands of that shape share;
    those that repeat themselves along a dimension have no say. None where that is the usual order, where there is none,
    and beside numbers of elements, which are counted in the usual order.

    `operands` are given with their alignments over `shape`. On the path of binding.
    """
    wide = [dimension for dimension, extent in enumerate(shape) if extent != 1]
    shared: list[int] | None = None
    for view, alignment in operands:
        if view.is_counted:
            return None
        strides = domain_strides(view.strides, alignment, len(shape))
        if view.is_scalar or not all([strides[dimension] for dimension in wide]):  # noqa: C419 - on the path of binding
            continue
        order = sorted(wide, key=lambda dimension: -strides[dimension])
        if order != (shared or order) or not _is_dense(shape, strides, order):
            return None
        shared = order
    return None if not shared or shared == wide or 0 in shape else _strides(shape, shared)


def _is_dense(shape: Shape, strides: Strides, order: Sequence[int]) -> bool:
    step = 1
    for dimension in reversed(order):
        if strides[dimension] != step:
            return False
        step *= shape[dimension]
    return True


def _strides(shape: Shape, order: Sequence[int]) -> Strides:
    strides, step = [1] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def takes_any_order(value: int, innermost: int, readers: Readers, roots: Sequence[int]) -> bool:
    """Whether all that becomes of a value is as fast where dimension `innermost` is the contiguous one: results of the
    program, maps, convolutions and windows, and reductions along other dimensions, or that one alone.
    """
    if value in roots:
        return True
    return all(_takes(reader, value, innermost, readers, roots) for reader in readers.get(value, ()))


def _takes(reader: Item, value: int, innermost: int, readers: Readers, roots: Sequence[int]) -> bool:
    if isinstance(reader, LayoutItem):
        if reader.movement == "permuted":
            return takes_any_order(reader.output, reader.permutation.index(innermost), readers, roots)
        return reader.movement == "cut" and takes_any_order(reader.output, innermost, readers, roots)
    if not isinstance(reader, KernelItem):
        return False
    if reader.reduced is None:
        family = family_of_region(reader.family)
        return family.takes_any_order or not family.is_anchored
    first, last = reader.reduced
    places = [alignment[innermost] for index, alignment in reader.loads if reader.inputs[index] == value]
    return all(place is None or last - first == 1 or not first <= place < last for place in places)
