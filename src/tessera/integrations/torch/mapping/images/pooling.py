"""Pools of images and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.graphs.operators import max_pool_backward
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, adjoint, maps, refuse_symbolic
from tessera.ops.window.calls import max_pool_cotangent

aten = torch.ops.aten


def _sides(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """The size of each side, of one for all or of as many as there are."""
    return tuple(sizes) * (count if len(sizes) == 1 else 1)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    """The sizes of an image's two sides, of one for both or of each."""
    height, width = _sides(sizes, 2)
    return height, width


def _batch(x: Tensor, sides: int) -> Tensor:
    """Images or volumes with a dimension for the batch, of a single one too."""
    return x if len(x.shape) == sides + 2 else op.unsqueeze(x, 0)


def _like(x: Tensor, sides: int, result: Tensor) -> Tensor:
    return result if len(x.shape) == sides + 2 else op.squeeze(result, 0)


def _by_planes(x: Tensor, pool: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """A pool of volumes [N, C, D, H, W]: of their planes, and then of what these give along the depth. `pool` is told
    which of the sides it is of; along the depth, a column.
    """
    count, channels, depth, height, width = x.shape
    planes = pool(op.reshape(x, (count, channels * depth, height, width)), slice(1, 3))
    height, width = planes.shape[2:]
    made = pool(op.reshape(planes, (count, channels, depth, height * width)), slice(0, 1))
    return op.reshape(made, (count, channels, made.shape[2], height, width))


def _along(sides: slice, sizes: Sequence[int], none: int) -> tuple[int, int]:
    """The sizes of rows and columns that a pool of these sides has."""
    found = tuple(sizes)[sides]
    return (found[0], none) if len(found) == 1 else (found[0], found[1])


@maps(aten.max_pool3d_with_indices.default)
def max_pool3d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    wanted: Wanted,
) -> tuple[Tensor, Tensor | None]:
    if 1 in wanted.used:
        return _with_places(x, wanted.shape[-3:], kernel, stride, padding, dilation)
    size, steps, around, apart = (_sides(each, 3) for each in (kernel, stride or kernel, padding, dilation))

    def pool(planes: Tensor, sides: slice) -> Tensor:
        window = _along(sides, size, 1), _along(sides, steps, 1), _along(sides, around, 0), _along(sides, apart, 1)
        return op.max_pool2d(planes, *window, ceil_mode)

    return _like(x, 3, _by_planes(_batch(x, 3), pool)), None


@maps(aten.avg_pool3d.default)
def avg_pool3d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    size, steps, around = (_sides(each, 3) for each in (kernel, stride or kernel, padding))
    divisor = 1 if divisor_override else None

    def pool(planes: Tensor, sides: slice) -> Tensor:
        window = _along(sides, size, 1), _along(sides, steps, 1), _along(sides, around, 0)
        return op.avg_pool2d(planes, *window, ceil_mode, count_include_pad, divisor)

    wide = _by_planes(_batch(x, 3).to(accumulator(x.dtype)), pool)
    result = op.div(wide, float(divisor_override)) if divisor_override else wide
    return _like(x, 3, result.to(x.dtype))


@maps(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(g: Tensor, x: Tensor, *settings: Any) -> Tensor:
    return adjoint(lambda volume: avg_pool3d(volume, *settings), x.shape, g)


@maps(aten.avg_pool1d.default)
def avg_pool1d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    window = [1, *kernel], [1, *(stride or kernel)], [0, *padding]
    return op.squeeze(avg_pool2d(op.unsqueeze(x, -2), *window, ceil_mode, count_include_pad), -2)


@maps(aten.max_pool2d_with_indices.default)
def max_pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    wanted: Wanted,
) -> tuple[Tensor, Tensor | None]:
    if 1 in wanted.used:
        return _with_places(x, wanted.shape[-2:], kernel, stride, padding, dilation)
    sizes, steps = _pair(kernel), _pair(stride or kernel)
    result = op.max_pool2d(_batch(x, 2), sizes, steps, _pair(padding), _pair(dilation), ceil_mode)
    return _like(x, 2, result), None


@maps(aten.avg_pool2d.default)
def avg_pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    result = op.avg_pool2d(
        _batch(x, 2),
        _pair(kernel),
        _pair(stride or kernel),
        _pair(padding),
        ceil_mode,
        count_include_pad,
        divisor_override,
    )
    return _like(x, 2, result)


# -- windows of different sizes ----------------------------------------------------------------------------------------


def _adaptive(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The means of so many windows along each of the last sides, which together cover them."""
    if 0 in sizes or not x.size:
        raise Unsupported("windows of no elements")
    dtype, first = accumulator(x.dtype), len(x.shape) - len(sizes)
    if all(size == 1 for size in sizes):
        return op.mean(x, tuple(range(first, len(x.shape))), True)
    wide = x.to(dtype)
    for axis, count in enumerate(sizes, first):
        wide = _means(wide, axis, count)
    return wide.to(x.dtype)


def _means(x: Tensor, axis: int, count: int) -> Tensor:
    """The means of `count` windows along one side: of equal ones, or of the places that each has."""
    extent = x.shape[axis]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if extent % count == 0:
        return op.mean(op.reshape(x, (*before, count, extent // count, *after)), axis + 1)
    refuse_symbolic(extent, count)
    starts = [place * extent // count for place in range(count)]
    lengths = [-(-(place + 1) * extent // count) - start for place, start in enumerate(starts)]
    longest = range(max(lengths))
    places = op.tensor([[min(start + step, extent - 1) for step in longest] for start in starts])
    inside = op.tensor([[step < length for step in longest] for length in lengths])
    total = op.sum(
        op.where(
            op.reshape(inside, (count, len(longest), *(1,) * len(after))),
            op.take(x, places, axis),
            op.zeros((), x.dtype),
        ),
        axis + 1,
    )
    divisors = op.tensor([float(length) for length in lengths]).to(x.dtype)
    return op.div(total, op.reshape(divisors, (count, *(1,) * len(after))))


@maps(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return _adaptive(x, sizes)


@maps(aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool1d(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return _adaptive(x, sizes)


@maps(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(g: Tensor, x: Tensor) -> Tensor:
    return adjoint(lambda image: _adaptive(image, g.shape[-2:]), x.shape, g)


@maps(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(g: Tensor, x: Tensor) -> Tensor:
    return adjoint(lambda volume: _adaptive(volume, g.shape[-3:]), x.shape, g)


# -- places of maxima -------------------------------------------------------------------------------------------------

MOST_CANDIDATES = 64
"""Larger windows are not written out place by place."""


def _with_places(
    x: Tensor,
    counts: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Tensor, Tensor]:
    sides = len(counts)
    refuse_symbolic(*x.shape[-sides:], *counts)
    size, steps, around, apart = (_sides(each, sides) for each in (kernel, stride or kernel, padding, dilation))
    windows = []
    for side, (extent, count) in enumerate(zip(x.shape[-sides:], counts, strict=True)):
        first = range(-around[side], count * steps[side] - around[side], steps[side])
        reach = size[side] * apart[side]
        windows.append([[at for at in range(start, start + reach, apart[side]) if 0 <= at < extent] for start in first])
    return _maxima(x, windows)


def _maxima(x: Tensor, windows: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """The largest element of each window and its place in the image or volume: of equal ones the first, of NaNs the
    last. `windows`: along each of the last sides, the places that each window has.
    """
    sides, rank = len(windows), len(x.shape)
    longest = [range(max(map(len, side), default=0)) for side in windows]
    if not x.size or not all(all(map(len, side)) and side for side in windows):
        raise Unsupported("windows of no elements")
    if math.prod(map(len, longest)) > MOST_CANDIDATES:
        raise Unsupported(f"the places of maxima among more than {MOST_CANDIDATES} elements")

    def candidate(steps: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        value, place, inside = x, op.zeros((), "int64"), None
        for axis, (side, step) in enumerate(zip(windows, steps, strict=True), rank - sides):
            at = op.tensor([window[min(step, len(window) - 1)] for window in side])
            value = op.take(value, at, axis)
            place = op.add(op.mul(place, x.shape[axis]), along(at, axis, rank))
            if not all(step < len(window) for window in side):
                mine = along(op.tensor([step < len(window) for window in side]), axis, rank)
                inside = mine if inside is None else op.logical_and(inside, mine)
        return value, place, inside

    best, found, _ = candidate([0] * sides)
    found = op.broadcast_to(found, best.shape)
    for steps in itertools.islice(itertools.product(*longest), 1, None):
        value, place, inside = candidate(steps)
        better = op.gt(value, best)
        if x.dtype.kind == "float":
            better = op.logical_or(better, op.isnan(value))
        if inside is not None:
            better = op.logical_and(better, inside)
        best, found = op.where(better, value, best), op.where(better, place, found)
    return best, found


@maps(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    refuse_symbolic(*x.shape[-len(sizes) :], *sizes)
    windows = [
        [range(at * extent // count, -(-(at + 1) * extent // count)) for at in range(count)]
        for extent, count in zip(x.shape[-len(sizes) :], sizes, strict=True)
    ]
    return _maxima(x, windows)


def _enter_adaptive_backward(sides: int) -> None:
    @maps(getattr(aten, f"adaptive_max_pool{sides}d_backward").default)
    def backward(g: Tensor, x: Tensor, places: Tensor) -> Tensor:
        if not x.size or not g.size:
            raise Unsupported("an image without elements")
        lead, wide = x.shape[:-sides], accumulator(x.dtype)
        flat = (op.reshape(each, (*lead, -1)) for each in (places, g.to(wide)))
        made = op.scatter_add(op.zeros((*lead, math.prod(x.shape[-sides:])), wide), -1, *flat)
        return op.reshape(made, x.shape).to(x.dtype)


for _count in (2, 3):
    _enter_adaptive_backward(_count)


# -- gradients --------------------------------------------------------------------------------------------------------


@maps(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(g: Tensor, x: Tensor, *settings: Any) -> Tensor:
    return adjoint(lambda image: avg_pool2d(image, *settings), x.shape, g)


Pooled: TypeAlias = Sequence[int]


@maps(max_pool_backward[2])
def max_pool2d_backward(
    g: Tensor, x: Tensor, kernel: Pooled, stride: Pooled, padding: Pooled, dilation: Pooled, ceil_mode: bool
) -> Tensor:
    """The cotangent of an image by its maxima, which are looked for again."""
    sizes, steps = _pair(kernel), _pair(stride or kernel)
    made: Any = max_pool_cotangent(_batch(g, 2), _batch(x, 2), sizes, steps, _pair(padding), _pair(dilation), ceil_mode)
    return _like(x, 2, made)


@maps(max_pool_backward[3])
def max_pool3d_backward(
    g: Tensor, x: Tensor, kernel: Pooled, stride: Pooled, padding: Pooled, dilation: Pooled, ceil_mode: bool
) -> Tensor:
    """As that of an image: first along the depth of what the planes' maxima are, then of the planes."""
    settings = [_sides(each, 3) for each in (kernel, stride or kernel, padding, dilation)]
    of_planes: Any
    of_depth: Any
    of_planes, of_depth = (
        [_along(sides, each, none) for each, none in zip(settings, (1, 1, 0, 1), strict=True)]
        for sides in (slice(1, 3), slice(0, 1))
    )
    volume, cotangent = _batch(x, 3), _batch(g, 3)
    count, channels, depth, height, width = volume.shape
    planes = op.reshape(volume, (count, channels * depth, height, width))
    sizes, steps, around, apart = of_planes
    maxima = op.max_pool2d(planes, sizes, steps, around, apart, ceil_mode)
    area = maxima.shape[2] * maxima.shape[3]
    columns = op.reshape(maxima, (count, channels, depth, area))
    arriving = op.reshape(cotangent, (count, channels, cotangent.shape[2], area))
    deep, strides, borders, holes = of_depth
    inner: Any = max_pool_cotangent(arriving, columns, deep, strides, borders, holes, ceil_mode)
    made: Any = max_pool_cotangent(op.reshape(inner, maxima.shape), planes, sizes, steps, around, apart, ceil_mode)
    return _like(x, 3, op.reshape(made, volume.shape))
