"""Shapes: parts of tensors, tensors out of parts, and tensors out of nothing. What can be a view is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from tessera import dtypes
from tessera.doors.nodes import Number, call, node, on
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.structure import Shape
from tessera.ops import algebra
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, is_one_of, normalized_axis, number, several
from tessera.ops.rows.calls import Axis
from tessera.runtime.streams import Stream

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def reshape(x: object, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """The same elements, in row-major order, under another shape; one extent may be -1. A view where strides permit."""
    return on(node(x).reshape(shape), stream)


def transpose(x: object, permutation: Sequence[int] | None = None, *, stream: Stream | None = None) -> Tensor:
    """Dimension `d` of the result is dimension `permutation[d]`; without one the last two are exchanged."""
    value = node(x)
    return on(value.transpose() if permutation is None else views.transpose(value, permutation), stream)


def broadcast_to(x: object, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """x repeated to `shape`."""
    return on(node(x).broadcast_to(shape), stream)


def concat(tensors: Sequence[object], axis: int = 0, *, stream: Stream | None = None) -> Tensor:
    """Tensors joined along an axis; all other extents agree."""
    return on(views.concat([node(part) for part in several(tensors, "tensors")], axis), stream)


def squeeze(x: object, axis: Axis = None, *, stream: Stream | None = None) -> Tensor:
    """x without its dimensions of extent 1: all of them, or those of `axis` that have it (as in torch)."""
    value = node(x)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    dropped = {normalized_axis(each, rank) for each in given}
    shape = tuple(extent for place, extent in enumerate(value.shape) if extent != 1 or place not in dropped)
    return on(views.reshape(value, shape), stream)


def unsqueeze(x: object, axis: int, *, stream: Stream | None = None) -> Tensor:
    """x with a new dimension of extent 1 at place `axis` of the result."""
    value = node(x)
    return on(_unsqueezed(value, normalized_axis(axis, len(value.shape) + 1)), stream)


def swapaxes(x: object, first: int, second: int, *, stream: Stream | None = None) -> Tensor:
    """x with two dimensions exchanged."""
    return on(views.swapped(node(x), first, second), stream)


def flip(x: object, axis: Axis = None, *, stream: Stream | None = None) -> Tensor:
    """x in the opposite order along axes, all by default. No copy of its own: kernels walk backwards."""
    value = node(x)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple([normalized_axis(each, rank) for each in given])
    if not rank:
        return on(value, stream)
    starts, steps = _backwards(value.shape, axes)
    return on(views.sliced(value, starts, value.shape, steps), stream)


@lru_cache(maxsize=1 << 10)
def _backwards(shape: Shape, axes: Shape) -> tuple[Shape, Shape]:
    """The first places and the steps of a walk that goes back along axes. Kept: it is half the time of a small flip."""
    starts = tuple(max(extent - 1, 0) if place in axes else 0 for place, extent in enumerate(shape))
    return starts, tuple(-1 if place in axes else 1 for place in range(len(shape)))


def split(x: object, sizes: int | Sequence[int], axis: int = 0, *, stream: Stream | None = None) -> tuple[Tensor, ...]:
    """The parts of x along an axis, as views: of `sizes` elements each, of which the last may be shorter, or of the
    sizes given (as in torch).

    Raises ShapeMismatchError where the sizes do not add up to the extent.
    """
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("split of a tensor without dimensions")
    place = normalized_axis(axis, len(value.shape))
    extent = value.shape[place]
    if isinstance(sizes, Sequence):
        parts = [integer(size, "a size") for size in sizes]
    else:
        size = integer(sizes, "a size")
        if size < 1:
            raise ArgumentError(f"split into parts of {size}", hints=["sizes are positive"])
        parts = [min(size, extent - start) for start in range(0, extent, size)] or [0]
    if sum(parts) != extent or min(parts, default=0) < 0:
        raise ShapeMismatchError(f"split: sizes {parts} along axis {place} of a tensor of shape {value.shape}")
    starts = accumulate(parts, initial=0)
    pieces = [views.part(value, place, start, size) for start, size in zip(starts, parts, strict=False)]
    return tuple([on(piece, stream) for piece in pieces])


def stack(tensors: Sequence[object], axis: int = 0, *, stream: Stream | None = None) -> Tensor:
    """Tensors of one shape joined along a new axis of the result."""
    nodes = [node(each) for each in several(tensors, "tensors")]
    if not nodes:
        raise ArgumentError("stack of no tensors")
    shape = nodes[0].shape
    if any(each.shape != shape for each in nodes):
        raise ShapeMismatchError(
            f"stack of tensors of shapes {' and '.join(str(each.shape) for each in nodes)}",
            hints=["all have the same shape; concat joins tensors that differ along one axis"],
        )
    place = normalized_axis(axis, len(shape) + 1)
    if place == len(shape):
        return on(views.concat([_unsqueezed(each, place) for each in nodes], place), stream)
    # Joined along the axis that follows the new one, so that kernels write their results in place.
    joined = views.concat(nodes, place)
    return on(views.reshape(joined, (*shape[:place], len(nodes), *shape[place:])), stream)


def pad(
    x: object, widths: Sequence[int], mode: str = "constant", value: Number = 0, *, stream: Stream | None = None
) -> Tensor:
    """x with elements around it. `widths` are in the order of `torch.nn.functional.pad`: (before, after) of the last
    axis, then of the last but one, and so on; negative ones take elements away.

    `mode` says what the new elements are: "constant": `value`; "reflect": those inside, mirrored at the outermost,
    which is not repeated; "replicate": the outermost; "circular": those of the other end. All modes take any number of
    axes. Raises ArgumentError (E_ARGUMENT) for widths that the mode has no elements for.
    """
    tensor = node(x)
    if not is_one_of(mode, PAD_MODES):
        raise ArgumentError(f"pad: mode={mode!r}", hints=[f"one of {', '.join(map(repr, PAD_MODES))}"])
    before, after = _widths(tensor.shape, widths)
    cut = tuple(
        slice(max(-b, 0), extent - max(-a, 0)) for b, a, extent in zip(before, after, tensor.shape, strict=True)
    )
    tensor = views.indexed(tensor, cut) if min((*before, *after), default=0) < 0 else tensor
    before, after = (tuple(max(width, 0) for width in side) for side in (before, after))
    for axis, extent in enumerate(tensor.shape):
        most = {"constant": math.inf, "reflect": extent - 1, "replicate": math.inf if extent else 0, "circular": extent}
        if max(before[axis], after[axis]) > max(most[mode], 0):
            raise ArgumentError(
                f"pad: widths {before[axis]} and {after[axis]} along axis {axis} of extent {extent}, mode {mode!r}",
                hints=[f"at most {max(most[mode], 0)} elements on a side"],
            )
    if not any(before) and not any(after):
        return on(tensor, stream)
    number(value, "the value of pad")
    fill = [algebra.filling(value, tensor.dtype)] if mode == "constant" else []
    return on(call("pad", tensor, *fill, before=before, after=after, mode=mode), stream)


def zeros(shape: Sequence[int], dtype: object = None, *, stream: Stream | None = None) -> Tensor:
    """A tensor of zeros, fp32 by default; part of the algebra, not memory, until it is asked for."""
    return full(shape, 0, dtypes.fp32 if dtype is None else dtype, stream=stream)


def ones(shape: Sequence[int], dtype: object = None, *, stream: Stream | None = None) -> Tensor:
    """A tensor of ones, fp32 by default; part of the algebra, not memory, until it is asked for."""
    return full(shape, 1, dtypes.fp32 if dtype is None else dtype, stream=stream)


def full(shape: Sequence[int], value: Number, dtype: object = None, *, stream: Stream | None = None) -> Tensor:
    """A tensor of one value, in the dtype that torch gives it by default: bool, int64, or fp32 of floats."""
    if not isinstance(value, bool | int | float):
        raise ArgumentError(f"full: value={value!r}", hints=["a number"])
    extents = _extents(shape)
    wanted = _default_dtype(value) if dtype is None else dtypes.dtype_of(dtype)
    return on(views.broadcast_to(algebra.filling(value, wanted), extents), stream)


def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: object = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The numbers start, start + step, ... before `stop`; of one argument 0, 1, ... before it. int64 of integers, else
    fp32. Kernels that use them compute them; no memory is read.
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = (first, last, step)
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        raise ArgumentError(f"arange of {numbers}", hints=["start, stop and step are numbers"])
    if not step or not all(math.isfinite(each) for each in numbers):
        raise ArgumentError(f"arange of {numbers}", hints=["numbers are finite, the step is not 0"])
    whole = all(isinstance(each, int) for each in numbers)
    # Integers by integer division: floats have no 64 bits.
    count = -((first - last) // step) if whole else math.ceil((last - first) / step)
    index = call("iota", shape=(max(int(count), 0),))
    made = index if step == 1 and whole else (index if whole else index.to(dtypes.fp64)) * step
    made = made if first == 0 else made + first
    wanted = dtypes.dtype_of(dtype) if dtype is not None else dtypes.int64 if whole else dtypes.fp32
    return on(made.to(wanted), stream)


def _unsqueezed(value: Tensor, place: int) -> Tensor:
    reshaped: Tensor = views.reshape(value, (*value.shape[:place], 1, *value.shape[place:]))
    return reshaped


def _widths(shape: Shape, widths: Sequence[int]) -> tuple[Shape, Shape]:
    """Widths before and after each axis, the first one first."""
    given = [integer(width, "a width") for width in several(widths, "widths")]
    if len(given) % 2 or len(given) > 2 * len(shape):
        raise ArgumentError(
            f"pad: {len(given)} widths for a tensor of {len(shape)} dimensions",
            hints=["a pair (before, after) for each axis, the last axis first"],
        )
    untouched = (0,) * (len(shape) - len(given) // 2)
    before, after = ((*untouched, *reversed(given[side::2])) for side in (0, 1))
    for axis, extent in enumerate(shape):
        if extent + min(before[axis], 0) + min(after[axis], 0) < 0:
            raise ArgumentError(f"pad: widths {before[axis]} and {after[axis]} take more than the {extent} elements")
    return before, after


def _extents(shape: Sequence[int]) -> Shape:
    extents = tuple(integer(extent, "an extent") for extent in several(shape, "extents"))
    if min(extents, default=0) < 0:
        raise ArgumentError(f"a shape of negative extents: {extents}")
    return extents


def _default_dtype(value: Number) -> dtypes.DType:
    if isinstance(value, bool):
        return dtypes.bool_
    return dtypes.int64 if isinstance(value, int) else dtypes.fp32
