"""Convolutions of images: `conv2d`.

    result[n, y, x, o] = sum over i, j, c of image[n, sy y - pt + dy i, sx x - pl + dx j, c] weights[o, c, i, j]

with zeros outside the image (cross-correlation, as every library of neural networks has it). The record's images have
their channels last, [N, H, W, C]; `calls` turns others into views of that kind. Weights are
[C_out, C_in / groups, KH, KW].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from tessera.dtypes import DType
from tessera.ops.convolution.gradients import convolution_gradient
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register
from tessera.ops.window.geometry import single_image

NAME = "conv2d"
Pair: TypeAlias = tuple[int, int]
SHOWN = "the image is shown as [N, H, W, C], whatever its layout"


def _dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    image, weights = operands
    if image.dtype.kind != "float" or image.dtype is not weights.dtype:
        hints = ["cast them to one dtype"]
        raise dtype_error(name, operands, "image and weights have one floating-point dtype", hints)
    return [image.dtype, weights.dtype]


def _advice(operands: Sequence[Typed], attributes: Named) -> list[str]:
    image, weights = (len(operand.shape) for operand in operands)
    if (image, weights) == (4, 4):
        return [SHOWN]
    wanted = "images are [N, C, H, W] or [N, H, W, C], weights [C_out, C_in / groups, KH, KW]"
    return [*single_image(image), wanted]


def _reference(
    image: torch.Tensor,
    weights: torch.Tensor,
    *,
    stride: Pair,
    padding: tuple[int, int, int, int],
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(image.permute(0, 3, 1, 2), (left, right, top, bottom))
    if not weights.shape[1]:  # sums of nothing, for which torch gives no channels
        padded, weights = (torch.nn.functional.pad(each, (0, 0, 0, 0, 0, groups)) for each in (padded, weights))
        weights = weights[:, :1]
    # Of float64 weights of other strides torch gives gradients that it then refuses.
    result = torch.nn.functional.conv2d(padded, weights.contiguous(), None, stride, 0, dilation, groups)
    return result.permute(0, 2, 3, 1)


def _body(
    e: Emitter[V],
    image: V,
    weights: V,
    *,
    stride: Pair,
    padding: tuple[int, int, int, int],
    dilation: Pair,
    groups: int,
) -> V:
    return e.convolve(image, weights)


CONV2D = register(
    Operator(
        name=NAME,
        family="convolution",
        arity=(2, 2),
        operand_dtypes=_dtypes,
        advice=_advice,
        reference=_reference,
        gradient=convolution_gradient,
        body=_body,
        attributes={"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
    )
)
