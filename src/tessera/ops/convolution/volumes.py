"""Convolutions of rows [N, C, L] and of volumes [N, C, D, H, W], and transposed ones, out of those of images.

A volume's planes are images, and the planes that a window sees lie in it as further channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tessera.dtypes import DType, accumulator
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal
from tessera.ops.convolution import calls
from tessera.ops.reverse import adjoint

N: TypeAlias = Any


def convolved(
    x: N, weights: N, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> N:
    """The convolution of rows, images or volumes, with as many strides, paddings and dilations as they have sides."""
    if len(x.shape) == 3:
        image, window = (_with(each, 2) for each in (x, weights))
        made = convolved(image, window, (1, *stride), (0, *padding), (1, *dilation), groups)
        return call("reshape", made, shape=(*made.shape[:2], made.shape[3]))
    if len(x.shape) == 4:
        return calls.conv2d(x, weights, None, tuple(stride), tuple(padding), tuple(dilation), groups, "NCHW")
    planes = _planes(x, weights.shape[2], stride[0], padding[0], dilation[0])
    count, depth, channels, taps, *sides = planes.shape
    images = call("reshape", planes, shape=(count * depth, channels * taps, *sides))
    outputs, inner, _, *window = weights.shape
    flat = call("reshape", weights, shape=(outputs, inner * taps, *window))
    made = convolved(images, flat, stride[1:], padding[1:], dilation[1:], groups)
    apart = call("reshape", made, shape=(count, depth, *made.shape[1:]))
    return call("transpose", apart, permutation=(0, 2, 1, 3, 4))


def _planes(x: N, taps: int, stride: int, padding: int, dilation: int) -> N:
    """[N, D, C, taps, H, W]: the planes that each window along the depth of volumes [N, C, D, H, W] sees."""
    if padding:
        around = (0, 0, padding, 0, 0)
        x = call("pad", x, literal(0, x.dtype), before=around, after=around, mode="constant")
    turned = call("transpose", x, permutation=(0, 2, 1, 3, 4))
    count, extent, *rest = turned.shape
    depth = (extent - (taps - 1) * dilation - 1) // stride + 1
    seen = [
        call(
            "slice",
            turned,
            starts=(0, tap * dilation, 0, 0, 0),
            sizes=(count, depth, *rest),
            steps=(1, stride, 1, 1, 1),
        )
        for tap in range(taps)
    ]
    columns = [_with(each, 3) for each in seen]
    return call("concat", *columns, axis=3) if taps > 1 else columns[0]


def _with(x: N, axis: int) -> N:
    """x with a dimension of 1."""
    return call("reshape", x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def transposed(
    g: N,
    weights: N,
    shape: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> N:
    """The transposed convolution of g: the cotangent, of `shape`, of what is convolved to a result of g's shape. What
    meets at an element is added up in the dtype that sums are formed in.
    """
    wide = accumulator(g.dtype)
    taps = _cast(weights, wide)
    found = adjoint(lambda x: _fitting(convolved(x, taps, stride, padding, dilation, groups), g), shape, _cast(g, wide))
    return _cast(found, g.dtype)


def of_weights(
    g: N, x: N, shape: Shape, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> N:
    """The cotangent, of `shape`, of the weights that x is convolved with to a result whose cotangent is g."""
    wide = accumulator(g.dtype)
    image = _cast(x, wide)
    found = adjoint(
        lambda weights: _fitting(convolved(image, weights, stride, padding, dilation, groups), g),
        shape,
        _cast(g, wide),
    )
    return _cast(found, g.dtype)


def _cast(x: N, dtype: DType) -> N:
    return x if x.dtype is dtype else call("cast", x, dtype=dtype)


def _fitting(made: N, g: N) -> N:
    """A result without the windows that output padding holds beside those of g."""
    if made.shape == g.shape:
        return made
    return call("slice", made, starts=(0,) * len(g.shape), sizes=g.shape, steps=(1,) * len(g.shape))
