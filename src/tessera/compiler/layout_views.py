"""Layout operators as views: the same memory under other strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tessera.compiler.arrays import Shape, View
from tessera.compiler.program import LayoutItem
from tessera.dtypes import complex_of, int64, real_of
from tessera.lazy.structure import Structure
from tessera.lazy.views import reshaped_strides

_Rule: TypeAlias = Callable[[LayoutItem, View, Shape, Structure], View | None]

_PARTS = 2


def layout_view(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View | None:
    """The result of a layout operator as a view of its operand, None where only a contiguous copy has one. `node` holds
    the attributes, `shape` is the result's.
    """
    return _RULES[item.operator](item, source, shape, node)


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
    lead = len(shape) - len(source.shape)
    strides = (0,) * lead + tuple(
        0 if own != wanted else stride
        for own, wanted, stride in zip(source.shape, shape[lead:], source.strides, strict=True)
    )
    return View(source.storage, source.dtype, shape, strides, source.offset_bytes)


def _sliced(item: LayoutItem, source: View, shape: Shape, node: Structure) -> View:
    attributes = node.named_attributes
    starts, steps = attributes["starts"], attributes["steps"]
    first = sum(start * stride for start, stride in zip(starts, source.strides, strict=True)) if 0 not in shape else 0
    strides = tuple(stride * step for stride, step in zip(source.strides, steps, strict=True))
    return View(source.storage, source.dtype, shape, strides, source.offset_bytes + first * source.dtype.itemsize)


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


_RULES: Mapping[str, _Rule] = {
    "transpose": _transposed,
    "broadcast_to": _broadcast,
    "slice": _sliced,
    "reshape": _reshaped,
    "view_as_real": _as_real,
    "view_as_complex": _as_complex,
}
