"""Convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.convolution.gradients import image_cotangent, weights_cotangent

aten = torch.ops.aten

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _around(padding: Sequence[int]) -> tuple[int, int, int, int]:
    """The padding above, to the left, below and to the right."""
    rows, columns = padding
    return rows, columns, rows, columns


def _as_images(rank: int, *rows: Tensor | None) -> list[Any]:
    """Rows as images of one row; images as they are. Raises Unsupported for volumes."""
    if rank not in (3, 4):
        raise Unsupported(f"images of {rank} dimensions")
    return [each if each is None or rank == 4 else op.unsqueeze(each, 2) for each in rows]


def _in_plane(rank: int, *settings: Sequence[int]) -> list[list[int]]:
    """Stride, padding (of no rows) and dilation of images, where they are those of rows."""
    neutral = (1, 0, 1, 0)
    return [
        list(each) * (2 if rank == 4 and len(each) == 1 else 1) if rank == 4 else [none, *each]
        for none, each in zip(neutral, settings, strict=False)
    ]


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
    image, window = _as_images(rank, x, weight)
    steps, around, apart = _in_plane(rank, stride, padding, dilation)
    if transposed:
        if 0 in wanted.shape or not x.size:
            raise Unsupported("a transposed convolution of no elements")
        shape = wanted.shape if rank == 4 else (*wanted.shape[:2], 1, wanted.shape[2])
        made = _of_image(image, shape, window, steps, around, apart, groups)
        result = made if bias is None else made + op.reshape(bias, (len(bias), 1, 1))
    else:
        result = op.conv2d(image, window, bias, stride=steps, padding=around, dilation=apart, groups=groups)
    return result if rank == 4 else op.squeeze(result, 2)


def _of_image(
    g: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The cotangent of an image of `shape` [N, C, H, W]. That is what a transposed convolution is."""
    last = tuple(shape[axis] for axis in TO_LAST)
    settings = tuple(stride), _around(padding), tuple(dilation), groups
    found: Any = image_cotangent(op.transpose(g, TO_LAST), last, weight, *settings)  # type: ignore[arg-type]
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
    cotangent, image, window = _as_images(rank, g, x, weight)
    steps, around, apart = _in_plane(rank, stride, padding, dilation)
    if transposed:  # g and x change places: the convolution of g is the cotangent of x
        dx = op.conv2d(cotangent, window, stride=steps, padding=around, dilation=apart, groups=groups)
        dx = dx[:, :, : image.shape[2], : image.shape[3]]  # output padding may hold one more window
        dw = _of_weights(image, cotangent, window.shape, steps, around, apart, groups)
    else:
        dx = _of_image(cotangent, image.shape, window, steps, around, apart, groups)
        dw = _of_weights(cotangent, image, window.shape, steps, around, apart, groups)
    flat = [each if rank == 4 else op.squeeze(each, 2) for each in (dx, dw)]
    db = op.sum(g, (0, *range(2, rank))).to(g.dtype)
    return tuple(each if asked else None for each, asked in zip((*flat, db), mask, strict=True))
