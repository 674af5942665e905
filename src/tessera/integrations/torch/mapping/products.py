"""Matrix products."""

from __future__ import annotations

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps

aten = torch.ops.aten


@maps(aten.mm.default, aten.bmm.default, aten.mv.default, aten.matmul.default)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return op.matmul(a, b)


@maps(aten.dot.default)
def dot(a: Tensor, b: Tensor) -> Tensor:
    return op.matmul(a, b)


@maps(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, wanted: Wanted) -> Tensor:
    if wanted.dtype.kind != "float" and not all(isinstance(each, int) for each in (beta, alpha)):
        raise Unsupported("integers times numbers that are none")
    product = op.matmul(a, b)
    scaled = product if alpha == 1 else op.mul(product, alpha)
    if beta == 0:  # torch then reads nothing of c, whose elements may be NaN
        return scaled
    return op.add(scaled, c if beta == 1 else op.mul(c, beta))


@maps(aten.linear.default)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = op.matmul(x, op.swapaxes(weight, 0, 1) if len(weight.shape) == 2 else weight)
    return product if bias is None else op.add(product, bias)
