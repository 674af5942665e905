"""Convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.convolution import volumes
from tessera.ops.convolution.gradients import image_cotangent, weights_cotangent

aten = torch.ops.aten

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _around(padding: Sequence[int]) -> tuple[int, int, int, int]:
    """The padding above, to the left, below and to the right."""
    rows, columns = padding
    return rows, columns, rows, columns


def _sides(rank: int, *settings: Sequence[int]) -> list[list[int]]:
    """Stride, padding and dilation of each side; one number is that of all."""
    return [list(each) * (rank - 2 if len(each) == 1 else 1) for each in settings]


@maps(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    wanted: Wanted,
) -> Tensor:
    rank = len(x.shape)
    if (transposed or rank == 5) and (not x.size or 0 in wanted.shape):
        raise Unsupported("a convolution of no elements")
    steps, around, apart = _sides(rank, stride, padding, dilation)
    if rank == 4 and not transposed:
        return op.conv2d(x, weight, bias, stride=steps, padding=around, dilation=apart, groups=groups)
    if transposed and rank == 4:
        return _of_image(x, wanted.shape, weight, steps, around, apart, groups, bias)
    if transposed:
        made = _of_image(x, wanted.shape, weight, steps, around, apart, groups)
    else:
        made = volumes.convolved(x, weight, steps, around, apart, groups)
    return made if bias is None else made + op.reshape(bias, (len(bias), *(1,) * (rank - 2)))


def _of_image(
    g: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    bias: Tensor | None = None,
) -> Tensor:
    """The cotangent of an image of `shape` [N, C, H, W]. That is what a transposed convolution is. Only images have a
    bias.
    """
    if len(shape) != 4:
        of_image: Tensor = volumes.transposed(g, weight, tuple(shape), stride, padding, dilation, groups)
        return of_image
    last = tuple(shape[axis] for axis in TO_LAST)
    settings = tuple(stride), _around(padding), tuple(dilation), groups
    found: Any = image_cotangent(op.transpose(g, TO_LAST), last, weight, *settings, bias)  # type: ignore[arg-type]
    return op.transpose(found, TO_FIRST)


def _of_weights(
    g: Tensor,
    image: Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The cotangent of weights of `shape`; both images with their channels first."""
    if len(shape) != 4:
        of_weights: Tensor = volumes.of_weights(g, image, tuple(shape), stride, padding, dilation, groups)
        return of_weights
    settings = tuple(stride), _around(padding), tuple(dilation), groups
    first, second = (op.transpose(each, TO_LAST) for each in (g, image))
    found: Tensor = weights_cotangent(first, second, tuple(shape), *settings)  # type: ignore[arg-type]
    return found


@maps(aten.convolution_backward.default)
def convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    if not g.size or not x.size:
        raise Unsupported("a convolution of no elements")
    rank = len(x.shape)
    steps, around, apart = _sides(rank, stride, padding, dilation)
    if transposed:  # g and x change places: the convolution of g is the cotangent of x
        dx = volumes.convolved(g, weight, steps, around, apart, groups)
        dx = dx[tuple(slice(extent) for extent in x.shape)]  # output padding may hold one more window
        dw = _of_weights(x, g, weight.shape, steps, around, apart, groups)
    else:
        dx = _of_image(g, x.shape, weight, steps, around, apart, groups)
        dw = _of_weights(g, x, weight.shape, steps, around, apart, groups)
    db = op.sum(g, (0, *range(2, rank))).to(g.dtype)
    return tuple(each if asked else None for each, asked in zip((dx, dw, db), mask, strict=True))
