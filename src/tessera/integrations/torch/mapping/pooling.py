"""Pools of images and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops import OPERATORS
from tessera.ops.algebra import call

aten = torch.ops.aten


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    """A size of rows and one of columns, of one for both or of two."""
    return sizes[0], sizes[-1]


def _image(x: Tensor) -> Tensor:
    """Images [N, C, H, W], of a single one [C, H, W] too."""
    return x if len(x.shape) == 4 else op.unsqueeze(x, 0)


def _like(x: Tensor, result: Tensor) -> Tensor:
    return result if len(x.shape) == 4 else op.squeeze(result, 0)


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
) -> tuple[Tensor, None]:
    if 1 in wanted.used:
        raise Unsupported("the places of maxima")
    result = op.max_pool2d(
        _image(x), _pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation), ceil_mode
    )
    return _like(x, result), None


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
        _image(x),
        _pair(kernel),
        _pair(stride or kernel),
        _pair(padding),
        ceil_mode,
        count_include_pad,
        divisor_override,
    )
    return _like(x, result)


def _even(x: Tensor, size: Sequence[int]) -> tuple[int, int]:
    """The windows of an adaptive pool where all are alike. Raises Unsupported where they are not."""
    height, width = x.shape[-2:]
    if 0 in size or not x.size or height % size[0] or width % size[1]:
        raise Unsupported("windows of different sizes")
    return height // size[0], width // size[1]


@maps(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Tensor:
    window = _even(x, size)
    return op.mean(x, (-2, -1), True) if window == x.shape[-2:] else avg_pool2d(x, window)


@maps(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(g: Tensor, x: Tensor) -> Tensor:
    rows, columns = _even(x, g.shape[-2:])
    apart = op.reshape(g, (*g.shape[:-1], g.shape[-1], 1))
    apart = op.reshape(apart, (*g.shape[:-2], g.shape[-2], 1, g.shape[-1], 1))
    wide = op.broadcast_to(apart, (*g.shape[:-2], g.shape[-2], rows, g.shape[-1], columns))
    return op.div(op.reshape(wide, x.shape), float(rows * columns))


def _windows(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> dict[str, Any]:
    """The attributes of a pool's record. Raises Unsupported for windows that reach past the padding."""
    if ceil_mode:
        raise Unsupported("the gradient of a pool with ceil_mode")
    rows, columns = _pair(padding)
    return {
        "kernel": _pair(kernel),
        "stride": _pair(stride or kernel),
        "padding": (rows, rows, columns, columns),
        "dilation": _pair(dilation),
        "layout": "NCHW",
    }


@maps(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    g: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    windows = _windows(kernel, stride, padding, (1,), ceil_mode)
    if any(padding) and not count_include_pad and divisor_override is None:
        raise Unsupported("the gradient of means that do not count the padding")
    rows, columns = windows["kernel"]
    share = op.div(_image(g), float(divisor_override or rows * columns))
    image = _image(x)
    (dx,) = OPERATORS["sum_pool2d"].gradient(share, (image,), None, **windows)
    return _like(x, dx)  # type: ignore[arg-type]  # rules give the nodes that doors do


def max_pool2d_gradient(
    g: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The cotangent of an image by its maxima, which are looked for again."""
    windows = _windows(kernel, stride, padding, dilation, ceil_mode)
    image = _image(x)
    (dx,) = OPERATORS["max_pool2d"].gradient(_image(g), (image,), call("max_pool2d", image, **windows), **windows)
    return _like(x, dx)  # type: ignore[arg-type]  # rules give the nodes that doors do
