"""Images and volumes with more or fewer places along their sides, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy
import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, adjoint, maps, refuse_symbolic
from tessera.lazy.symbols.integers import is_symbolic

aten = torch.ops.aten

Taps: TypeAlias = tuple[list[int], list[float]]
"""What a place of a resized side is made of: places of the side, and their shares."""

_SIDES = (1, 2, 3)


def _nearest(extent: int, count: int, scale: float | None, shift: float) -> list[int]:
    """The nearest place to each of `count` ones, in 32 bits as torch computes it.

    Raises Unsupported where a scale says something else than sides of equal or double size: some of torch's kernels go
    by the one, some by the other.
    """
    step = numpy.float32(1 / scale if scale else extent / count)
    found = [min(int((numpy.float32(place) + numpy.float32(shift)) * step), extent - 1) for place in range(count)]
    if not shift and count in (extent, 2 * extent) and found != [place * extent // count for place in range(count)]:
        raise Unsupported("a scale other than that of the sizes")
    return found


def _repeated(x: Tensor, sizes: Sequence[int], scales: Sequence[float | None], shift: float) -> Tensor:
    """Each place again, as often as sides have more places; places left out where they have fewer."""
    if not x.size:
        raise Unsupported("an image without elements")
    for axis, (count, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        extent = x.shape[axis]
        if count == extent and not scale:
            continue
        often, rest = count // extent, count % extent
        if rest:
            refuse_symbolic(extent, count)
        is_repeated = not rest
        if not is_symbolic(extent) and not is_symbolic(count):
            places = _nearest(extent, count, scale, shift)
            is_repeated = not rest and places == [place // often for place in range(count)]
        if not is_repeated:
            x = op.take(x, op.tensor(places), axis)
            continue
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        apart = op.broadcast_to(op.unsqueeze(x, axis + 1), (*before, extent, often, *after))
        x = op.reshape(apart, (*before, count, *after))
    return x


def _enter_nearest(sides: int, name: str, shift: float) -> None:
    @maps(getattr(aten, f"{name}{sides}d").default)
    def forward(x: Tensor, size: Sequence[int], *scales: float | None) -> Tensor:
        return _repeated(x, size, _all(scales, sides), shift)

    @maps(getattr(aten, f"{name}{sides}d").vec)
    def forward_of_factors(x: Tensor, size: object, factors: Sequence[float] | None, *, wanted: Wanted) -> Tensor:
        return _repeated(x, wanted.shape[2:], factors or [None] * sides, shift)

    @maps(getattr(aten, f"{name}{sides}d_backward").default)
    def backward(g: Tensor, size: Sequence[int], before: Sequence[int], *scales: float | None) -> Tensor:
        if not math.prod(before):
            raise Unsupported("an image without elements")
        return adjoint(lambda image: _repeated(image, size, _all(scales, sides), shift), before, g)


def _all(scales: Sequence[float | None], sides: int) -> list[float | None]:
    """The scale of each side; those that are not told are None."""
    return [*scales, *[None] * (sides - len(scales))]


for _count in _SIDES:
    _enter_nearest(_count, "upsample_nearest", 0.0)
    _enter_nearest(_count, "_upsample_nearest_exact", 0.5)


# -- gradients of what is weighed --------------------------------------------------------------------------------------


def _position(place: int, extent: int, count: int, scale: float | None, aligned: bool) -> float:
    if aligned:
        return place * (extent - 1) / (count - 1) if count > 1 else 0.0
    return (place + 0.5) * (1 / scale if scale else extent / count) - 0.5


def _linear(position: float, extent: int) -> Taps:
    position = max(position, 0.0)
    low = min(int(position), extent - 1)
    return [low, min(low + 1, extent - 1)], [1 - (position - low), position - low]


def _cubic(position: float, extent: int) -> Taps:
    low = math.floor(position)
    rest = position - low
    near = [((1.25 * t - 2.25) * t) * t + 1 for t in (rest, 1 - rest)]
    far = [((-0.75 * t + 3.75) * t - 6) * t + 3 for t in (rest + 1, 2 - rest)]
    places = [min(max(low + step, 0), extent - 1) for step in (-1, 0, 1, 2)]
    return places, [far[0], near[0], near[1], far[1]]


def _weighed(
    x: Tensor,
    sizes: Sequence[int],
    aligned: bool,
    scales: Sequence[float | None],
    taps: Callable[[float, int], Taps],
) -> Tensor:
    """Each place as a sum of places along each side."""
    refuse_symbolic(*x.shape[2:], *sizes)
    for axis, (count, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        extent = x.shape[axis]
        found = [taps(_position(place, extent, count, scale, aligned), extent) for place in range(count)]
        total: Any = None
        for tap in range(len(found[0][0])):
            places, shares = [each[0][tap] for each in found], [each[1][tap] for each in found]
            part = op.mul(op.take(x, op.tensor(places), axis), along(op.tensor(shares), axis, len(x.shape)))
            total = part if total is None else op.add(total, part)
        x = total
    return x


def _enter_weighed(sides: int, name: str, taps: Callable[[float, int], Taps]) -> None:
    @maps(getattr(aten, f"{name}{sides}d_backward").default)
    def backward(g: Tensor, size: Sequence[int], before: Sequence[int], aligned: bool, *scales: float | None) -> Tensor:
        if not math.prod(before) or not g.size:
            raise Unsupported("an image without elements")
        if g.dtype.kind != "float":
            raise Unsupported("images of integers")
        return adjoint(lambda image: _weighed(image, size, aligned, _all(scales, sides), taps), before, g)


for _count, _name, _taps in (
    (1, "upsample_linear", _linear),
    (2, "upsample_bilinear", _linear),
    (3, "upsample_trilinear", _linear),
    (2, "upsample_bicubic", _cubic),
):
    _enter_weighed(_count, _name, _taps)
