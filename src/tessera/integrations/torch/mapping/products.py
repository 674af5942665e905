"""Matrix products."""

from __future__ import annotations

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.algebra import call

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


@maps(aten.addbmm.default)
def addbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, wanted: Wanted) -> Tensor:
    count, rows, inner = a.shape
    beside = op.reshape(op.transpose(a, (1, 0, 2)), (rows, count * inner))
    below = op.reshape(b, (count * inner, b.shape[2]))
    return addmm(c, beside, below, beta=beta, alpha=alpha, wanted=wanted)


@maps(aten.linear.default)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = op.matmul(x, op.swapaxes(weight, 0, 1) if len(weight.shape) == 2 else weight)
    return product if bias is None else op.add(product, bias)


@maps(aten._grouped_mm.default)
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    wanted: Wanted,
) -> Tensor:
    ranks = len(a.shape), len(b.shape)
    if bias is not None or (offs is None) != (ranks == (3, 3)):
        raise Unsupported("a bias, or operands of these ranks")
    if offs is None:
        return op.matmul(a, b).to(wanted.dtype)
    sizes = _sizes(offs)
    if ranks == (2, 3):
        made = op.grouped_matmul(a, b, sizes)
    elif ranks == (2, 2):
        made = call("grouped_outer", op.swapaxes(a, 0, 1), b, sizes)
    else:
        turned = op.grouped_matmul(op.swapaxes(b, 0, 1), op.swapaxes(a, 1, 2), sizes)
        made = op.swapaxes(turned, 0, 1)
    return made.to(wanted.dtype)


@maps("transformers.grouped_mm_fallback.default")
def grouped_rows(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return op.grouped_matmul(a, b, _sizes(offs))


@maps("transformers.grouped_mm_fallback_backward.default")
def grouped_rows_backward(a: Tensor, b: Tensor, offs: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    sizes = _sizes(offs)
    by_a = op.grouped_matmul(g, op.swapaxes(b, 1, 2), sizes)
    return by_a, call("grouped_outer", a, g, sizes)


def _sizes(ends: Tensor) -> Tensor:
    """The sizes of groups: torch says where each ends, which is where the next one begins."""
    ends = ends.to("int64")
    return op.sub(ends, op.pad(ends[:-1], [1, 0]))
