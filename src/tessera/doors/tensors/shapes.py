"""Shapes: parts of tensors, and tensors out of parts. What can be a view is one. `axis` may be written `dim`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import Number, call, node, on
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.structures.structure import Shape
from tessera.ops import algebra
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, is_one_of, normalized_axis, number, several
from tessera.ops.rows.calls import Axis
from tessera.runtime.streams.stream import Stream

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


def permute(x: object, axes: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """Dimension `d` of the result is dimension `axes[d]`."""
    return on(views.transpose(node(x), axes), stream)


def movedim(
    x: object, source: int | Sequence[int], destination: int | Sequence[int], *, stream: Stream | None = None
) -> Tensor:
    """x with dimensions moved to other places; the others stay in their order."""
    value = node(x)
    rank = len(value.shape)
    first, last = ([normalized_axis(each, rank) for each in _axes(given)] for given in (source, destination))
    if len(first) != len(last) or len({*first}) != len(first) or len({*last}) != len(last):
        raise ArgumentError(f"movedim: {source} to {destination}", hints=["as many places as dimensions, each once"])
    order = [axis for axis in range(rank) if axis not in first]
    for place, axis in sorted(zip(last, first, strict=True)):
        order.insert(place, axis)
    return on(views.transpose(value, order), stream)


def flatten(x: object, start_dim: int = 0, end_dim: int = -1, *, stream: Stream | None = None) -> Tensor:
    """x with the dimensions from one to another made one, in row-major order: all by default."""
    value = node(x)
    if not value.shape:
        return on(views.reshape(value, (1,)), stream)
    first, last = (normalized_axis(axis, len(value.shape)) for axis in (start_dim, end_dim))
    if first > last:
        raise ArgumentError(f"flatten from dimension {first} to {last}", hints=["the first one first"])
    shape = (*value.shape[:first], math.prod(value.shape[first : last + 1]), *value.shape[last + 1 :])
    return on(views.reshape(value, shape), stream)


def concat(tensors: Sequence[object], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """Tensors joined along an axis; all other extents agree."""
    return on(views.concat([node(part) for part in several(tensors, "tensors")], along(axis, dim, 0)), stream)


def squeeze(x: object, axis: Axis = None, *, dim: Axis = None, stream: Stream | None = None) -> Tensor:
    """x without its dimensions of extent 1: all of them, or those of `axis` that have it (as in torch)."""
    value, axis = node(x), along(axis, dim)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    dropped = {normalized_axis(each, rank) for each in given}
    shape = tuple(extent for place, extent in enumerate(value.shape) if extent != 1 or place not in dropped)
    return on(views.reshape(value, shape), stream)


def unsqueeze(x: object, axis: int | None = None, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """x with a new dimension of extent 1 at place `axis` of the result."""
    value, axis = node(x), along(axis, dim)
    if axis is None:
        raise ArgumentError("unsqueeze: no axis is given", hints=["axis=0, or dim=0"])
    return on(_unsqueezed(value, normalized_axis(axis, len(value.shape) + 1)), stream)


def swapaxes(x: object, first: int, second: int, *, stream: Stream | None = None) -> Tensor:
    """x with two dimensions exchanged."""
    return on(views.swapped(node(x), first, second), stream)


def flip(x: object, axis: Axis = None, *, dims: Axis = None, stream: Stream | None = None) -> Tensor:
    """x in the opposite order along axes, all by default. No copy of its own: kernels walk backwards."""
    value, axis = node(x), along(axis, dims)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple([normalized_axis(each, rank) for each in given])
    if not rank:
        return on(value, stream)
    starts, steps = _backwards(value.shape, axes)
    return on(views.sliced(value, starts, value.shape, steps), stream)


def roll(
    x: object,
    shift: int | Sequence[int],
    axis: Axis = None,
    *,
    dims: Axis = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with elements moved on by `shift` along axes, those that leave one end coming in at the other; without an axis
    along all elements in row-major order.
    """
    value, axis = node(x), along(axis, dims)
    if axis is None:
        row = views.reshape(value, (math.prod(value.shape),))
        return on(views.reshape(roll(row, shift, 0), value.shape), stream)
    shifts, axes = _axes(shift), _axes(axis)
    if len(shifts) != len(axes):
        if len(shifts) != 1:
            raise ArgumentError(f"roll by {shift} along {axis}", hints=["a shift for each axis, or one for all"])
        shifts = shifts * len(axes)
    for by, each in zip(shifts, axes, strict=True):
        place = normalized_axis(each, len(value.shape))
        extent = value.shape[place] if value.shape else 0
        moved = by % extent if extent else 0
        if moved:
            ends = views.part(value, place, extent - moved, moved), views.part(value, place, 0, extent - moved)
            value = views.concat(ends, place)
    return on(value, stream)


def tile(x: object, repetitions: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """x as often along each dimension as `repetitions` says; the shorter of both is filled up with ones in front."""
    value = node(x)
    times = _axes(repetitions)
    if min(times, default=0) < 0:
        raise ArgumentError(f"tile: {times} repetitions", hints=["0 or more"])
    shape = (*[1] * (len(times) - len(value.shape)), *value.shape)
    times = (*[1] * (len(shape) - len(times)), *times)
    pairs = list(zip(times, shape, strict=True))
    rows = views.reshape(value, [extent for own in shape for extent in (1, own)])
    wide = views.broadcast_to(rows, [extent for pair in pairs for extent in pair])
    return on(views.reshape(wide, [count * own for count, own in pairs]), stream)


def repeat_interleave(
    x: object, repeats: int, axis: int | None = None, *, dim: int | None = None, stream: Stream | None = None
) -> Tensor:
    """x with each element `repeats` times in a row along an axis; without one along all elements in row-major order."""
    value, axis, count = node(x), along(axis, dim), integer(repeats, "repeats")
    if count < 0:
        raise ArgumentError(f"repeat_interleave: {count} repeats", hints=["0 or more"])
    if axis is None:
        value, axis = views.reshape(value, (math.prod(value.shape),)), 0
    place = normalized_axis(axis, len(value.shape)) + 1
    shape = value.shape
    wide = views.broadcast_to(_unsqueezed(value, place), (*shape[:place], count, *shape[place:]))
    return on(views.reshape(wide, (*shape[: place - 1], shape[place - 1] * count, *shape[place:])), stream)


def diagonal(x: object, offset: int = 0, *, stream: Stream | None = None) -> Tensor:
    """The diagonal of matrices, the last two dimensions, as the last dimension: 0 is the main one, 1 the next above."""
    value = node(x)
    if len(value.shape) < 2:
        raise ShapeMismatchError(f"diagonal of a tensor of shape {value.shape}", hints=["a matrix has two dimensions"])
    above = integer(offset, "the offset")
    *batch, rows, columns = value.shape
    count = max(min(rows, columns - above) if above >= 0 else min(rows + above, columns), 0)
    first = above if above >= 0 else -above * columns
    row = views.reshape(value, (*batch, rows * columns))
    untouched = (0,) * len(batch)
    cut = views.sliced(row, (*untouched, first if count else 0), (*batch, count), (*[1] * len(batch), columns + 1))
    return on(cut, stream)


def trace(x: object, offset: int = 0, *, stream: Stream | None = None) -> Tensor:
    """The sum along the diagonal of matrices, the last two dimensions; integers and bools add up in int64."""
    return on(call("sum", diagonal(x, offset), axes=(len(node(x).shape) - 2,)), stream)


def diff(x: object, n: int = 1, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """The differences of neighbours along an axis, n times; of bools whether they differ."""
    value, axis, times = node(x), along(axis, dim, -1), integer(n, "n")
    if times < 0 or not value.shape:
        raise ArgumentError(f"diff, {times} times, of a tensor of shape {value.shape}", hints=["n >= 0, one dimension"])
    place = normalized_axis(axis, len(value.shape))
    for _ in range(min(times, value.shape[place])):
        extent = value.shape[place] - 1
        pair = views.part(value, place, 1, extent), views.part(value, place, 0, extent)
        value = call("ne" if value.dtype.kind == "bool" else "sub", *pair)
    return on(value, stream)


@lru_cache(maxsize=1 << 10)
def _backwards(shape: Shape, axes: Shape) -> tuple[Shape, Shape]:
    """The first places and the steps of a walk that goes back along axes. Kept: it is half the time of a small flip."""
    starts = tuple(max(extent - 1, 0) if place in axes else 0 for place, extent in enumerate(shape))
    return starts, tuple(-1 if place in axes else 1 for place in range(len(shape)))


def split(
    x: object, sizes: int | Sequence[int], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, ...]:
    """The parts of x along an axis, as views: of `sizes` elements each, of which the last may be shorter, or of the
    sizes given (as in torch).

    Raises ShapeMismatchError where the sizes do not add up to the extent.
    """
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("split of a tensor without dimensions")
    place = normalized_axis(along(axis, dim, 0), len(value.shape))
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


def chunk(
    x: object, chunks: int, axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, ...]:
    """x in that many parts along an axis, as views, or fewer: all of one size but the last, which may be shorter."""
    value, count, axis = node(x), integer(chunks, "chunks"), along(axis, dim, 0)
    if count < 1:
        raise ArgumentError(f"chunk into {count} parts", hints=["1 or more"])
    extent = value.shape[normalized_axis(axis, len(value.shape))] if value.shape else 0
    if not extent:
        return split(value, [0] * count, axis, stream=stream)
    return split(value, -(-extent // count), axis, stream=stream)


def unbind(x: object, axis: int = 0, *, dim: int | None = None, stream: Stream | None = None) -> tuple[Tensor, ...]:
    """The parts of x at each place along an axis, as views without it."""
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("unbind of a tensor without dimensions")
    place = normalized_axis(along(axis, dim, 0), len(value.shape))
    rest = (*value.shape[:place], *value.shape[place + 1 :])
    parts = (views.part(value, place, start, 1) for start in range(value.shape[place]))
    return tuple([on(views.reshape(each, rest), stream) for each in parts])


def stack(tensors: Sequence[object], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
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
    place = normalized_axis(along(axis, dim, 0), len(shape) + 1)
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


def _axes(given: int | Sequence[int]) -> tuple[int, ...]:
    """One integer or several, as several."""
    return tuple(integer(each, "an integer") for each in (given if isinstance(given, Sequence) else (given,)))
