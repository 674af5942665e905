"""Layout operators as views: the same memory under other strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from tessera.compiler.bind.arrays import Shape, Storage, View
from tessera.compiler.graph.program import LayoutItem
from tessera.dtypes import complex_of, int64, real_of
from tessera.lazy.leaves.views import reshaped_strides
from tessera.lazy.structures.structure import Structure, contiguous_strides
from tessera.ops.layout.records import pad_sources
from tessera.ops.record import Movement

_Rule: TypeAlias = Callable[[LayoutItem, View, Shape, Structure], View | None]

_PARTS = 2


def layout_view(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View | None:
    """The result of a layout operator as a view of its operand, None where only a contiguous copy has one. `node` holds
    the attributes, `shape` is the result's.
    """
    return _RULES[item.movement](item, source, shape, node)


def counted(shape: Shape) -> View:
    """The numbers of a shape's elements; kernels take an address for them, at which nothing is read."""
    return View(Storage(int64.itemsize), int64, shape, contiguous_strides(shape), is_counted=True)


def centre(result: View, shape: Shape, before: Shape) -> View:
    """Where the elements of what is padded lie in the padded tensor."""
    return _stepped(result, shape, before, (1,) * len(shape))


def paddings(result: View, shape: Shape, before: Shape, mode: str, fill: View | None) -> Iterator[tuple[View, View]]:
    """What to copy where, in order, once the centre is in its place: along one axis after the other, over all that is
    there of the axes before.
    """
    for axis, (extent, front) in enumerate(zip(shape, before, strict=True)):
        back = result.shape[axis] - front - extent
        band = centre(result, (*result.shape[: axis + 1], *shape[axis + 1 :]), (*[0] * (axis + 1), *before[axis + 1 :]))
        sources = pad_sources(mode, extent, front, back)
        for at, width, (start, step) in ((0, front, sources[0]), (front + extent, back, sources[1])):
            if width:
                target = _along(band, axis, at, width, 1)
                yield _repeated(fill, target.shape) if fill else _along(band, axis, start, width, step), target


def words_of(view: View) -> View:
    """Complex elements as integers of 64 bits, which copies move as they are; other views as they are."""
    if view.dtype.kind != "complex":
        return view
    words = view.dtype.itemsize // int64.itemsize
    strides = tuple([stride * words for stride in view.strides])
    if words == 1:
        return View(view.storage, int64, view.shape, strides, view.offset_bytes)
    return View(view.storage, int64, (*view.shape, words), (*strides, 1), view.offset_bytes)


def _transposed(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View:
    strides = tuple([source.strides[d] for d in item.permutation])
    return View(source.storage, source.dtype, shape, strides, source.offset_bytes)


def _broadcast(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View:
    return _repeated(source, shape)


def _repeated(source: View, shape: Shape) -> View:
    lead = len(shape) - len(source.shape)
    strides = (0,) * lead + tuple(
        0 if own != wanted else stride
        for own, wanted, stride in zip(source.shape, shape[lead:], source.strides, strict=True)
    )
    return View(source.storage, source.dtype, shape, strides, source.offset_bytes)


def _sliced(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View:
    attributes = node.named_attributes
    return _stepped(source, shape, attributes["starts"], attributes["steps"])


def _stepped(source: View, shape: Shape, starts: Shape, steps: Shape) -> View:
    """Elements `starts[d] + i * steps[d]`, `shape[d]` of them; a step of 0 repeats one, -1 goes back."""
    first = sum(start * stride for start, stride in zip(starts, source.strides, strict=True)) if 0 not in shape else 0
    strides = tuple(stride * step for stride, step in zip(source.strides, steps, strict=True))
    return View(source.storage, source.dtype, shape, strides, source.offset_bytes + first * source.dtype.itemsize)


def _along(source: View, axis: int, start: int, size: int, step: int) -> View:
    """`size` elements along an axis."""
    starts = tuple(start if dim == axis else 0 for dim in range(len(source.shape)))
    steps = tuple(step if dim == axis else 1 for dim in range(len(source.shape)))
    return _stepped(source, (*source.shape[:axis], size, *source.shape[axis + 1 :]), starts, steps)


def _reshaped(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View | None:
    strides = reshaped_strides(source.shape, source.strides, shape)
    return None if strides is None else View(source.storage, source.dtype, shape, strides, source.offset_bytes)


def _as_real(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View:
    strides = (*[_PARTS * stride for stride in source.strides], 1)
    return View(source.storage, real_of(source.dtype), shape, strides, source.offset_bytes)


def _as_complex(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View | None:
    *lead, last = source.strides
    wide = complex_of(source.dtype)
    if 0 not in shape and (last != 1 or any(stride % _PARTS for stride in lead) or source.offset_bytes % wide.itemsize):
        return None
    return View(source.storage, wide, shape, tuple([stride // _PARTS for stride in lead]), source.offset_bytes)


_RULES: Mapping[Movement, _Rule] = {
    "permuted": _transposed,
    "repeated": _broadcast,
    "cut": _sliced,
    "regrouped": _reshaped,
    "parted": _as_real,
    "paired": _as_complex,
}
