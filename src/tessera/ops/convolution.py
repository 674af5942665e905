"""Convolutions of images: `conv2d`.

    result[n, y, x, o] = sum over i, j, c of image[n, sy y - pt + dy i, sx x - pl + dx j, c] weights[o, c, i, j]

with zeros outside the image (cross-correlation, as every library of neural networks has it). The record's images have
their channels last, [N, H, W, C]; `convolution_calls` turns others into views of that kind. Weights are
[C_out, C_in / groups, KH, KW].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from tessera.dtypes import DType
from tessera.lazy.structure import Shape
from tessera.ops.convolution_gradient import convolution_gradient
from tessera.ops.emitter import Emitter, V
from tessera.ops.geometry import single_image
from tessera.ops.record import Named, Operator, Typed, bytes_once, dtype_error, elements, register, shape_error

NAME = "conv2d"
Pair: TypeAlias = tuple[int, int]
SHOWN = "the image is shown as [N, H, W, C], whatever its layout"


def _dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    image, weights = operands
    if image.dtype.kind != "float" or image.dtype is not weights.dtype:
        hints = ["cast them to one dtype"]
        raise dtype_error(name, operands, "image and weights have one floating-point dtype", hints)
    return [image.dtype, weights.dtype]


def result_extent(extent: int, window: int, stride: int, padding: Pair, dilation: int) -> int:
    """The number of results along one side of an image; not positive where the window does not fit."""
    return (extent + sum(padding) - dilation * (window - 1) - 1) // stride + 1


def _result(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    image, weights = (operand.shape for operand in operands)
    if len(image) != 4 or len(weights) != 4:
        hints = [
            *single_image(len(image)),
            "images are [N, C, H, W] or [N, H, W, C], weights [C_out, C_in / groups, KH, KW]",
        ]
        raise shape_error(name, operands, "image and weights have four dimensions", hints)
    count, height, width, channels = image
    outputs, depth, *window = weights
    groups = attributes["groups"]
    if channels != depth * groups:
        reason = f"the image has {channels} channels, the weights take {depth} in each of {groups} groups"
        raise shape_error(name, operands, reason, [SHOWN])
    if outputs % groups:
        raise shape_error(name, operands, f"{groups} groups do not divide {outputs} output channels", [SHOWN])
    if 0 in window:
        raise shape_error(name, operands, "the weights' window has no elements")
    top, left, bottom, right = attributes["padding"]
    sides = ((height, window[0], (top, bottom)), (width, window[1], (left, right)))
    extents = []
    for (extent, size, padding), stride, dilation in zip(
        sides, attributes["stride"], attributes["dilation"], strict=True
    ):
        reach = dilation * (size - 1) + 1
        if reach > extent + sum(padding):
            reason = f"the window reaches over {reach} pixels, the padded image has {extent + sum(padding)}"
            raise shape_error(name, operands, reason, ["a smaller window or dilation", "or more padding", SHOWN])
        extents.append(result_extent(extent, size, stride, padding, dilation))
    return (count, *extents, outputs), cast[0]


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    _, depth, height, width = operands[1].shape
    return 2 * elements(result.shape) * depth * height * width


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
        result=_result,
        flops=_flops,
        bytes_moved=bytes_once,
        reference=_reference,
        gradient=convolution_gradient,
        body=_body,
        attributes={"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
    )
)
