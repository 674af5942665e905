"""Backward operators of maps and rows, and the backend's own ones."""

from __future__ import annotations

from typing import Any

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.graphs.operators import log_softmax_gradient
from tessera.integrations.torch.mapping.table import maps
from tessera.ops import OPERATORS

aten = torch.ops.aten


@maps(aten.sigmoid_backward.default)
def sigmoid_backward(g: Tensor, y: Tensor) -> Tensor:
    return op.mul(g, op.mul(op.sub(1.0, y), y))


@maps(aten.tanh_backward.default)
def tanh_backward(g: Tensor, y: Tensor) -> Tensor:
    return op.mul(g, op.sub(1.0, op.mul(y, y)))


@maps(aten.threshold_backward.default)
def threshold_backward(g: Tensor, x: Tensor, threshold: float) -> Tensor:
    return op.where(op.le(x, threshold), op.full((), 0.0, g.dtype), g)


@maps(aten.gelu_backward.default)
def gelu_backward(g: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = accumulator(x.dtype)
    dx: Any = OPERATORS["gelu"].gradient(g.to(wide), (x.to(wide),), None, approximate=approximate)[0]
    return op.cast(dx, x.dtype)


@maps(aten.silu_backward.default)
def silu_backward(g: Tensor, x: Tensor) -> Tensor:
    wide = x.to(accumulator(x.dtype))
    share = op.sigmoid(wide)
    slope = op.mul(share, op.add(1.0, op.mul(wide, op.sub(1.0, share))))
    return op.mul(g, slope).to(x.dtype)


@maps(aten._softmax_backward_data.default)
def softmax_backward(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    wide = accumulator(y.dtype)
    product = g.to(wide) * y.to(wide)
    total = op.sum(product, dim, True) if y.shape else product
    return op.sub(product, op.mul(y.to(wide), total)).to(dtype)


@maps(aten._log_softmax_backward_data.default)
def log_softmax_backward(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    wide = g.to(accumulator(g.dtype))
    total = op.sum(wide, dim, True) if y.shape else wide
    return op.sub(wide, op.mul(op.exp(y.to(wide.dtype)), total)).to(dtype)


@maps(log_softmax_gradient)
def log_softmax_gradient_of(g: Tensor, x: Tensor, axis: int) -> Tensor:
    if not x.shape:
        return op.sub(g, g)
    wide = g.to(accumulator(g.dtype))
    shares = op.softmax(x.to(wide.dtype), axis)
    return op.sub(wide, op.mul(shares, op.sum(wide, axis, True))).to(x.dtype)
