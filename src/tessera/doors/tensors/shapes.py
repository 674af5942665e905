"""Tensors under other shapes, and in other orders. What can be a view is one. `axis` may be written `dim`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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
from tessera.typing import ArrayLike

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def reshape(x: ArrayLike, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """The same elements, in row-major order, under another shape; one extent may be -1. A view where strides permit.

    Shapes: x of any shape; the result has `shape`, of as many elements. Dtypes: all. Raises ShapeMismatchError
    (E_SHAPE_MISMATCH).

    >>> op.reshape(op.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return on(node(x).reshape(shape), stream)


def transpose(x: ArrayLike, permutation: Sequence[int] | None = None, *, stream: Stream | None = None) -> Tensor:
    """Dimension `d` of the result is dimension `permutation[d]`; without one the last two are exchanged.

    Shapes: x's in another order. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for what is no permutation.

    >>> op.transpose(op.ones((2, 3, 4))).shape
    (2, 4, 3)
    >>> op.transpose(op.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    value = node(x)
    return on(value.transpose() if permutation is None else views.transpose(value, permutation), stream)


def broadcast_to(x: ArrayLike, shape: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """x repeated to `shape`.

    Shapes: x of a shape that broadcasts to `shape`, which the result has. Dtypes: all. Raises ShapeMismatchError
    (E_SHAPE_MISMATCH).

    >>> op.broadcast_to(op.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    return on(node(x).broadcast_to(shape), stream)


def permute(x: ArrayLike, axes: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """Dimension `d` of the result is dimension `axes[d]`.

    Shapes: x's in another order. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.permute(op.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return on(views.transpose(node(x), axes), stream)


def movedim(
    x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], *, stream: Stream | None = None
) -> Tensor:
    """x with dimensions moved to other places; the others stay in their order.

    Shapes: x's in another order. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.movedim(op.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    value = node(x)
    rank = len(value.shape)
    first, last = ([normalized_axis(each, rank) for each in _axes(given)] for given in (source, destination))
    if len(first) != len(last) or len({*first}) != len(first) or len({*last}) != len(last):
        raise ArgumentError(f"movedim: {source} to {destination}", hints=["as many places as dimensions, each once"])
    order = [axis for axis in range(rank) if axis not in first]
    for place, axis in sorted(zip(last, first, strict=True)):
        order.insert(place, axis)
    return on(views.transpose(value, order), stream)


def flatten(x: ArrayLike, start_dim: int = 0, end_dim: int = -1, *, stream: Stream | None = None) -> Tensor:
    """x with the dimensions from one to another made one, in row-major order: all by default.

    Shapes: x's, with the dimensions from `start_dim` to `end_dim` as one. Dtypes: all. Raises ArgumentError
    (E_ARGUMENT) for an axis out of range.

    >>> op.flatten(op.ones((2, 3, 4)), start_dim=1).shape
    (2, 12)
    """
    value = node(x)
    if not value.shape:
        return on(views.reshape(value, (1,)), stream)
    first, last = (normalized_axis(axis, len(value.shape)) for axis in (start_dim, end_dim))
    if first > last:
        raise ArgumentError(f"flatten from dimension {first} to {last}", hints=["the first one first"])
    shape = (*value.shape[:first], math.prod(value.shape[first : last + 1]), *value.shape[last + 1 :])
    return on(views.reshape(value, shape), stream)


def squeeze(x: ArrayLike, axis: Axis = None, *, dim: Axis = None, stream: Stream | None = None) -> Tensor:
    """x without its dimensions of extent 1: all of them, or those of `axis` that have it (as in torch).

    Shapes: x's without extents of 1. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.squeeze(op.ones((1, 3, 1))).shape
    (3,)
    """
    value, axis = node(x), along(axis, dim)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    dropped = {normalized_axis(each, rank) for each in given}
    shape = tuple(extent for place, extent in enumerate(value.shape) if extent != 1 or place not in dropped)
    return on(views.reshape(value, shape), stream)


def unsqueeze(x: ArrayLike, axis: int | None = None, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """x with a new dimension of extent 1 at place `axis` of the result.

    Shapes: x's with a 1 at `axis`. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.unsqueeze(op.ones(3), 0).shape
    (1, 3)
    """
    value, axis = node(x), along(axis, dim)
    if axis is None:
        raise ArgumentError("unsqueeze: no axis is given", hints=["axis=0, or dim=0"])
    return on(_unsqueezed(value, normalized_axis(axis, len(value.shape) + 1)), stream)


def swapaxes(x: ArrayLike, first: int, second: int, *, stream: Stream | None = None) -> Tensor:
    """x with two dimensions exchanged.

    Shapes: x's in another order. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.swapaxes(op.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    return on(views.swapped(node(x), first, second), stream)


def flip(x: ArrayLike, axis: Axis = None, *, dims: Axis = None, stream: Stream | None = None) -> Tensor:
    """x in the opposite order along axes, all by default. No copy of its own: kernels walk backwards.

    Shapes: x of any shape; the result has it. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.flip(op.tensor([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    value, axis = node(x), along(axis, dims)
    rank = len(value.shape)
    given = range(rank) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple([normalized_axis(each, rank) for each in given])
    if not rank:
        return on(value, stream)
    starts, steps = _backwards(value.shape, axes)
    return on(views.sliced(value, starts, value.shape, steps), stream)


def roll(
    x: ArrayLike,
    shift: int | Sequence[int],
    axis: Axis = None,
    *,
    dims: Axis = None,
    stream: Stream | None = None,
) -> Tensor:
    """x with elements moved on by `shift` along axes, those that leave one end coming in at the other; without an axis
    along all elements in row-major order.

    Shapes: x of any shape; the result has it. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.roll(op.tensor([1, 2, 3]), 1).tolist()
    [3, 1, 2]
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


def tile(x: ArrayLike, repetitions: Sequence[int], *, stream: Stream | None = None) -> Tensor:
    """x as often along each dimension as `repetitions` says; the shorter of both is filled up with ones in front.

    Shapes: x's times `repetitions`. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for fewer than 0 repetitions.

    >>> op.tile(op.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
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
    x: ArrayLike, repeats: int, axis: int | None = None, *, dim: int | None = None, stream: Stream | None = None
) -> Tensor:
    """x with each element `repeats` times in a row along an axis; without one along all elements in row-major order.

    Shapes: x's, `repeats` times along the axis. Dtypes: all. Raises ArgumentError (E_ARGUMENT).

    >>> op.repeat_interleave(op.tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    value, axis, count = node(x), along(axis, dim), integer(repeats, "repeats")
    if count < 0:
        raise ArgumentError(f"repeat_interleave: {count} repeats", hints=["0 or more"])
    if axis is None:
        value, axis = views.reshape(value, (math.prod(value.shape),)), 0
    place = normalized_axis(axis, len(value.shape)) + 1
    shape = value.shape
    wide = views.broadcast_to(_unsqueezed(value, place), (*shape[:place], count, *shape[place:]))
    return on(views.reshape(wide, (*shape[: place - 1], shape[place - 1] * count, *shape[place:])), stream)


def diagonal(x: ArrayLike, offset: int = 0, *, stream: Stream | None = None) -> Tensor:
    """The diagonal of matrices, the last two dimensions, as the last dimension: 0 is the main one, 1 the next above.

    Shapes: x [..., M, N] gives [..., length of the diagonal]. Dtypes: all. Raises ShapeMismatchError (E_SHAPE_MISMATCH)
    below two dimensions.

    >>> op.diagonal(op.tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
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


def trace(x: ArrayLike, offset: int = 0, *, stream: Stream | None = None) -> Tensor:
    """The sum along the diagonal of matrices, the last two dimensions; integers and bools add up in int64.

    Shapes: x [..., M, N] gives [...]. Dtypes: floats, 8-bit floats and complex; integers and bools give int64. Raises
    ShapeMismatchError (E_SHAPE_MISMATCH) below two dimensions.

    >>> op.trace(op.tensor([[1, 2], [3, 4]])).tolist()
    5
    """
    return on(call("sum", diagonal(x, offset), axes=(len(node(x).shape) - 2,)), stream)


def diff(x: ArrayLike, n: int = 1, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """The differences of neighbours along an axis, n times; of bools whether they differ.

    Shapes: x's, with n fewer along the axis. Dtypes: all. Raises ArgumentError (E_ARGUMENT).

    >>> op.diff(op.tensor([1, 4, 9])).tolist()
    [3, 5]
    """
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


def pad(
    x: ArrayLike, widths: Sequence[int], mode: str = "constant", value: Number = 0, *, stream: Stream | None = None
) -> Tensor:
    """x with elements around it. `widths` are in the order of `torch.nn.functional.pad`: (before, after) of the last
    axis, then of the last but one, and so on; negative ones take elements away.

    `mode` says what the new elements are: "constant": `value`; "reflect": those inside, mirrored at the outermost,
    which is not repeated; "replicate": the outermost; "circular": those of the other end. All modes take any number of
    axes. Raises ArgumentError (E_ARGUMENT) for widths that the mode has no elements for.

    Shapes: x's plus the widths. Dtypes: all.

    >>> op.pad(op.tensor([1, 2]), (1, 2)).tolist()
    [0, 1, 2, 0, 0]
    >>> op.pad(op.tensor([1, 2, 3]), (2, 0), mode="reflect").tolist()
    [3, 2, 1, 2, 3]
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
