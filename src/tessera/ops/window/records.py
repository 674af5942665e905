"""Reductions over a window that slides over images: `depthwise_conv2d`, `max_pool2d`, `sum_pool2d`.

    result[n, c, y, x] = body over (ky, kx) of image[n, c, y sy - top + ky dy, x sx - left + kx dx], taps[c, ky, kx]

The first operand is read through the window, [N, C, H, W] or with `layout="NHWC"` [N, H, W, C]; further operands have
an element for each channel of the result and each place of the window, [C, KH, KW]. What lies outside the image reads
0, or where all reductions are maxima (or minima) what changes none. `padding` is (top, bottom, left, right).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import Reduction
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register
from tessera.ops.window.geometry import single_image
from tessera.ops.window.gradients import depthwise_gradient, max_pool_gradient, sum_pool_gradient

N: TypeAlias = Any

GEOMETRY: Named = {
    "kernel": (1, 1),
    "stride": (1, 1),
    "padding": (0, 0, 0, 0),
    "dilation": (1, 1),
    "layout": "NCHW",
}
"""The attributes of every operator of this family."""


def image_dimensions(layout: str) -> tuple[int, int, int]:
    """The dimensions of channels, rows and columns."""
    return (1, 2, 3) if layout == "NCHW" else (3, 1, 2)


# -- rules ------------------------------------------------------------------------------------------------------------


def only_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """One floating-point dtype for all operands. Raises DTypeError."""
    if any(operand.dtype.kind != "float" or operand.dtype is not operands[0].dtype for operand in operands):
        raise dtype_error(name, operands, "operands have one floating-point dtype", ["cast them to one dtype"])
    return [operand.dtype for operand in operands]


def _advice(operands: Sequence[Typed], attributes: Named) -> list[str]:
    rank = len(operands[0].shape)
    return single_image(rank) if rank != 4 else ["pad more, or take a smaller kernel"]


# -- references -------------------------------------------------------------------------------------------------------


def _as_planes(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x if layout == "NCHW" else x.permute(0, 3, 1, 2)


def _as_given(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x if layout == "NCHW" else x.permute(0, 2, 3, 1)


def windows_of(x: torch.Tensor, outside: float, attributes: Named) -> torch.Tensor:
    """[N, C, OH, OW, KH, KW]: what each window of images [N, C, H, W] sees; `outside` of them where it leaves them."""
    top, bottom, left, right = attributes["padding"]
    padded = torch.nn.functional.pad(x, (left, right, top, bottom), value=outside)
    for side in (0, 1):
        kernel, dilation, stride = (attributes[name][side] for name in ("kernel", "dilation", "stride"))
        padded = padded.unfold(2 + side, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    return padded


def _depthwise_reference(x: torch.Tensor, weight: torch.Tensor, **attributes: Any) -> torch.Tensor:
    top, bottom, left, right = attributes["padding"]
    planes = torch.nn.functional.pad(_as_planes(x, attributes["layout"]), (left, right, top, bottom))
    result = torch.nn.functional.conv2d(
        planes,
        weight[:, None],
        stride=attributes["stride"],
        dilation=attributes["dilation"],
        groups=max(planes.shape[1], 1),
    )
    return _as_given(result, attributes["layout"])


def _max_reference(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    windows = windows_of(_as_planes(x, attributes["layout"]), float("-inf"), attributes)
    # `max` over one axis, as its gradient goes to the first of equal elements; that of `amax` goes to all of them.
    return _as_given(windows.flatten(-2).max(-1).values, attributes["layout"])


def _sum_reference(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    windows = windows_of(_as_planes(x, attributes["layout"]), 0.0, attributes)
    return _as_given(windows.sum((-2, -1)), attributes["layout"])


# -- bodies -----------------------------------------------------------------------------------------------------------


def _depthwise_body(e: Emitter[V], x: V, weight: V, **attributes: object) -> V:
    return e.reduce("add", e.mul(x, weight))


def _max_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return e.reduce("max", x)


def _sum_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return e.reduce("add", x)


DEPTHWISE_CONV2D = register(
    Operator(
        name="depthwise_conv2d",
        family="window",
        arity=(2, 2),
        operand_dtypes=only_float,
        advice=_advice,
        reference=_depthwise_reference,
        gradient=depthwise_gradient,
        body=_depthwise_body,
        attributes={**GEOMETRY, "multiplier": 1},
        anchor=anchor_rules.window("add"),
    )
)

_POOLS: tuple[tuple[str, Reduction, Any, Any, Any], ...] = (
    ("max_pool2d", "max", _max_reference, max_pool_gradient, _max_body),
    ("sum_pool2d", "add", _sum_reference, sum_pool_gradient, _sum_body),
)
for _name, _by, _reference, _gradient, _body in _POOLS:
    register(
        Operator(
            name=_name,
            family="window",
            arity=(1, 1),
            operand_dtypes=only_float,
            advice=_advice,
            reference=_reference,
            gradient=_gradient,
            body=_body,
            attributes=GEOMETRY,
            anchor=anchor_rules.window(_by),
        )
    )
