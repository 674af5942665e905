"""The gradient of convolutions, out of existing operators.

With Y = X * W: dX is the convolution of dY, its rows and columns moved apart by the stride, with W turned around; dW is
the convolution of X by dY, images and channels exchanged, where stride and dilation have exchanged their places.
(Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016.)
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tessera.ops.algebra import call, filled
from tessera.ops.layout.views import reshape, sliced, transpose

N: TypeAlias = Any
Pair: TypeAlias = tuple[int, int]


def convolution_gradient(
    g: N,
    operands: tuple[N, N],
    out: N,
    *,
    stride: Pair,
    padding: tuple[int, int, int, int],
    dilation: Pair,
    groups: int,
) -> tuple[N, N]:
    """The cotangents of image and weights."""
    image, weights = operands
    return (
        _of_image(g, image, weights, stride, padding, dilation, groups),
        _of_weights(g, image, weights, stride, padding, dilation, groups),
    )


def _of_image(
    g: N, image: N, weights: N, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> N:
    apart = _apart(_apart(g, 1, stride[0]), 2, stride[1])
    turned = _reversed(_reversed(weights, 2), 3)
    outputs, depth, height, width = weights.shape
    inner = reshape(turned, (groups, outputs // groups, depth, height, width))
    exchanged = reshape(transpose(inner, (0, 2, 1, 3, 4)), (groups * depth, outputs // groups, height, width))
    # Around the results moved apart lies the window's reach but for what padding has taken of it; where the padding is
    # larger than that, results are dropped instead.
    kept, around = apart, []
    for side, window in ((0, height), (1, width)):
        reach = dilation[side] * (window - 1)
        kept, zeros = _between(kept, 1 + side, padding[side] - reach, image.shape[1 + side] + reach)
        around.append(zeros)
    (top, bottom), (left, right) = around
    return call(
        "conv2d",
        kept,
        exchanged,
        stride=(1, 1),
        padding=(top, left, bottom, right),
        dilation=dilation,
        groups=groups,
    )


def _of_weights(
    g: N, image: N, weights: N, stride: Pair, padding: tuple[int, int, int, int], dilation: Pair, groups: int
) -> N:
    outputs, depth, height, width = weights.shape
    parts = []
    for group in range(groups):
        pixels = _part(image, 3, group * depth, depth)
        cotangent = _part(g, 3, group * (outputs // groups), outputs // groups)
        found = call(
            "conv2d",
            transpose(pixels, (3, 1, 2, 0)),
            transpose(cotangent, (3, 0, 1, 2)),
            stride=dilation,
            padding=padding,
            dilation=stride,
            groups=1,
        )
        found = _part(_part(found, 1, 0, height), 2, 0, width)  # what the stride left over of the image comes after
        parts.append(transpose(found, (3, 0, 1, 2)))
    return call("concat", *parts, axis=0) if groups > 1 else parts[0]


def _part(x: N, axis: int, start: int, size: int) -> N:
    """Elements [start, start + size) along an axis."""
    starts = tuple(start if dim == axis else 0 for dim in range(len(x.shape)))
    sizes = tuple(size if dim == axis else extent for dim, extent in enumerate(x.shape))
    return sliced(x, starts, sizes, (1,) * len(x.shape))


def _apart(x: N, axis: int, step: int) -> N:
    """The elements along an axis with `step - 1` zeros between neighbours."""
    extent = x.shape[axis]
    if step == 1 or extent <= 1:
        return x
    column = reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    zeros = [filled(0.0, column)] * (step - 1)
    spread = call("concat", column, *zeros, axis=axis + 1)
    whole = reshape(spread, (*x.shape[:axis], extent * step, *x.shape[axis + 1 :]))
    return _part(whole, axis, 0, (extent - 1) * step + 1)


def _between(x: N, axis: int, start: int, length: int) -> tuple[N, Pair]:
    """What elements [start, start + length) along an axis are where zeros lie around `x`: those of them that `x` has,
    and how many zeros come before and after.
    """
    extent = x.shape[axis]
    first, end = max(start, 0), min(start + length, extent)
    if first >= end:
        zero = filled(0.0, _part(x, axis, 0, 1))
        return zero, (0, length - 1)
    kept = x if end - first == extent else _part(x, axis, first, end - first)
    return kept, (first - start, start + length - end)


def _reversed(x: N, axis: int) -> N:
    """The elements along a short axis in the opposite order."""
    extent = x.shape[axis]
    if extent == 1:
        return x
    return call("concat", *[_part(x, axis, place, 1) for place in reversed(range(extent))], axis=axis)
