"""Images and volumes sampled at the points of a grid, and the gradients of both."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, maps

aten = torch.ops.aten

LINEAR, NEAREST, CUBIC = range(3)
"""How torch numbers what a point is made of."""
ZEROS, BORDER, REFLECTION = range(3)
"""How torch numbers what there is outside of an image."""


@dataclass(frozen=True)
class Tap:
    """One of the places along a side that a point is made of: [N, points] each."""

    place: Tensor
    """An integer of the coordinates' dtype, which may lie outside."""
    share: Tensor
    slope: Tensor
    """By how much the share grows with the grid's number."""


def _along(numbers: Tensor, extent: int, mode: int, outside: int, aligned: bool) -> list[Tap]:
    """The places along a side that points are made of, for the grid's numbers, -1 to 1 from end to end of the side."""
    scale = (extent - 1) / 2 if aligned else extent / 2
    position = op.add(op.mul(numbers, scale), (extent - 1) / 2)
    one = op.full((), 1.0, numbers.dtype)
    if mode == CUBIC:
        low = op.floor(position)
        return [
            Tap(_inside(op.add(low, step - 1.0), extent, outside, aligned)[0], share, op.mul(slope, scale))
            for step, (share, slope) in enumerate(_cubic(op.sub(position, low)))
        ]
    position, slope = _inside(position, extent, outside, aligned)
    if mode == NEAREST:
        return [Tap(op.round(position), op.broadcast_to(one, numbers.shape), op.mul(slope, 0.0))]
    low = op.floor(position)
    rest, slope = op.sub(position, low), op.mul(slope, scale)
    return [Tap(low, op.sub(1.0, rest), op.neg(slope)), Tap(op.add(low, 1.0), rest, slope)]


def _inside(position: Tensor, extent: int, outside: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Where a position outside is taken from, and by how much that changes with the position."""
    slope = op.broadcast_to(op.full((), 1.0, position.dtype), position.shape)
    if outside == REFLECTION:
        least, span = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
        if not span:
            return op.mul(slope, 0.0), op.mul(slope, 0.0)
        far = op.abs(op.sub(position, least))
        turns = op.floor(op.div(far, span))
        rest = op.sub(far, op.mul(turns, span))
        is_even = op.eq(op.mul(op.floor(op.div(turns, 2.0)), 2.0), turns)
        slope = op.where(op.lt(position, least), op.neg(slope), slope)
        slope = op.where(is_even, slope, op.neg(slope))
        position = op.add(op.where(is_even, rest, op.sub(span, rest)), least)
    if outside != ZEROS:
        is_within = op.logical_and(op.gt(position, 0.0), op.lt(position, extent - 1.0))
        slope = op.where(is_within, slope, 0.0)
        position = op.clamp(position, 0.0, extent - 1.0)
    return position, slope


def _cubic(rest: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The shares of four neighbours, of which the second one is before the position by `rest`, and their slopes."""
    far, near = (-0.75, 3.75, -6.0, 3.0), (1.25, -2.25, 0.0, 1.0)
    for offset, sign, (a, b, c, d) in ((1.0, 1.0, far), (0.0, 1.0, near), (1.0, -1.0, near), (2.0, -1.0, far)):
        t = op.add(op.mul(rest, sign), offset)
        share = op.add(op.mul(op.add(op.mul(op.add(op.mul(t, a), b), t), c), t), d)
        slope = op.add(op.mul(op.add(op.mul(t, 3 * a), 2 * b), t), c)
        yield share, op.mul(slope, sign)


@dataclass(frozen=True)
class Corner:
    """One of the elements that each point is made of."""

    place: Tensor
    """[N, points]: the element's number in the image; 0 where it lies outside."""
    is_within: Tensor
    share: Tensor
    """[N, points]: 0 where it lies outside."""
    slopes: tuple[Tensor, ...]
    """By each of the grid's numbers, x first; also where it lies outside."""


def _corners(grid: Tensor, sides: Sequence[int], mode: int, outside: int, aligned: bool) -> Iterator[Corner]:
    points = math.prod(grid.shape[1:-1])
    flat = op.reshape(grid, (grid.shape[0], points, len(sides)))
    taps = [
        _along(flat[:, :, number], extent, mode, outside, aligned) for number, extent in enumerate(reversed(sides))
    ][::-1]
    for chosen in itertools.product(*taps):
        within = [
            op.logical_and(op.ge(tap.place, 0.0), op.lt(tap.place, float(extent)))
            for tap, extent in zip(chosen, sides, strict=True)
        ]
        is_within = functools.reduce(op.logical_and, within)
        inside = [op.where(is_within, tap.place, 0.0).to("int64") for tap in chosen]
        place = inside[0]
        for own, extent in zip(inside[1:], sides[1:], strict=True):
            place = op.add(op.mul(place, extent), own)
        slopes = [
            functools.reduce(op.mul, [each.slope if each is tap else each.share for each in chosen])
            for tap in reversed(chosen)
        ]
        share = functools.reduce(op.mul, [tap.share for tap in chosen])
        yield Corner(place, is_within, op.where(is_within, share, 0.0), tuple(slopes))


def _refuse_empty(*operands: Tensor) -> None:
    if not all(operand.size for operand in operands):
        raise Unsupported("an image without elements, or no points")


def _each_channel(x: Tensor, channels: int) -> Tensor:
    """[N, points] for each channel: [N, C, points]."""
    return op.broadcast_to(op.unsqueeze(x, 1), (x.shape[0], channels, x.shape[1]))


@maps(aten.grid_sampler_3d.default)
def grid_sampler_3d(x: Tensor, grid: Tensor, mode: int, outside: int, aligned: bool) -> Tensor:
    _refuse_empty(x, grid)
    count, channels, *sides = x.shape
    wide = accumulator(x.dtype)
    flat = op.reshape(x, (count, channels, math.prod(sides))).to(wide)
    parts = [
        op.mul(op.gather(flat, 2, _each_channel(corner.place, channels)), op.unsqueeze(corner.share, 1))
        for corner in _corners(grid.to(wide), sides, mode, outside, aligned)
    ]
    return op.reshape(functools.reduce(op.add, parts), (count, channels, *grid.shape[1:-1])).to(x.dtype)


@maps(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    g: Tensor, x: Tensor, grid: Tensor, mode: int, outside: int, aligned: bool, wanted_of: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    _refuse_empty(g, x, grid)
    count, channels, *sides = x.shape
    wide, elements = accumulator(x.dtype), math.prod(sides)
    flat = op.reshape(x, (count, channels, elements)).to(wide)
    given = op.reshape(g, (count, channels, math.prod(g.shape[2:]))).to(wide)
    image = op.zeros((count, channels, elements), wide)
    slopes = [op.zeros((count, given.shape[2]), wide) for _ in sides]
    # torch multiplies what lies outside of an image by its slope, which is not always a number, and of a volume not.
    keeps_slopes = mode == CUBIC or (outside == ZEROS and len(sides) == 2)
    for corner in _corners(grid.to(wide), sides, mode, outside, aligned):
        places = _each_channel(corner.place, channels)
        if wanted_of[0]:
            image = op.scatter_add(image, 2, places, op.mul(given, op.unsqueeze(corner.share, 1)))
        if wanted_of[1] and mode != NEAREST:
            by_share = op.where(corner.is_within, op.sum(op.mul(given, op.gather(flat, 2, places)), 1), 0.0)
            own = [each if keeps_slopes else op.where(corner.is_within, each, 0.0) for each in corner.slopes]
            slopes = [op.add(total, op.mul(by_share, each)) for total, each in zip(slopes, own, strict=True)]
    dx = op.reshape(image, x.shape).to(x.dtype) if wanted_of[0] else None
    dgrid = op.reshape(op.stack(slopes, -1), grid.shape).to(grid.dtype)
    return dx, dgrid if wanted_of[1] else None
