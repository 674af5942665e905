"""Reductions along dimensions; order, running values and selections along one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, axes_of, floating, maps

aten = torch.ops.aten
Dims: TypeAlias = int | Sequence[int] | None


def _in(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


@maps(aten.sum.default)
def sum_all(x: Tensor, dtype: torch.dtype | None = None, *, wanted: Wanted) -> Tensor:
    return op.sum(_in(x, dtype)).to(wanted.dtype)


@maps(aten.sum.dim_IntList)
def sum_dims(
    x: Tensor, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None, *, wanted: Wanted
) -> Tensor:
    return op.sum(_in(x, dtype), axes_of(dim), keepdim).to(wanted.dtype)


@maps(aten.mean.default)
def mean_all(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return op.mean(_in(x, dtype))


@maps(aten.mean.dim)
def mean_dims(x: Tensor, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    return op.mean(_in(x, dtype), axes_of(dim), keepdim)


@maps(aten.prod.default)
def prod_all(x: Tensor, dtype: torch.dtype | None = None, *, wanted: Wanted) -> Tensor:
    return op.prod(_in(x, dtype)).to(wanted.dtype)


@maps(aten.prod.dim_int)
def prod_dim(x: Tensor, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None, *, wanted: Wanted) -> Tensor:
    return op.prod(_in(x, dtype), dim, keepdim).to(wanted.dtype)


@maps(aten.amax.default)
def amax(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return op.max(x, axes_of(dim), keepdim)


@maps(aten.amin.default)
def amin(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return op.min(x, axes_of(dim), keepdim)


@maps(aten.max.default)
def max_all(x: Tensor) -> Tensor:
    return op.max(x)


@maps(aten.min.default)
def min_all(x: Tensor) -> Tensor:
    return op.min(x)


@maps(aten.max.dim)
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return op.max(x, dim, keepdim), argmax(x, dim, keepdim)


@maps(aten.min.dim)
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return op.min(x, dim, keepdim), argmin(x, dim, keepdim)


@maps(aten.argmax.default)
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return op.argmax(x.to("int32") if x.dtype.kind == "bool" else x, dim, keepdim)


@maps(aten.argmin.default)
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return argmax(_reversed(x), dim, keepdim)


def _reversed(x: Tensor) -> Tensor:
    """The elements in the opposite order of size. Of integers -1 - x, as the smallest one has no negative."""
    if x.dtype.kind == "bool":
        return op.logical_not(x)
    return -x if x.dtype.kind == "float" else op.sub(-1, x)


@maps(aten.any.default, aten.any.dim, aten.any.dims)
def any_of(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return op.any(x, axes_of(dim), keepdim)


@maps(aten.all.default, aten.all.dim, aten.all.dims)
def all_of(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return op.all(x, axes_of(dim), keepdim)


@maps(aten.var.correction)
def var(x: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return op.var(x, axes_of(dim), 1 if correction is None else correction, keepdim)


@maps(aten.var.dim)
def var_dims(x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return var(x, dim, int(unbiased), keepdim)


@maps(aten.var_mean.correction)
def var_mean(
    x: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var(x, dim, correction, keepdim), op.mean(x, axes_of(dim), keepdim)


@maps(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    return op.logsumexp(floating(x), axes_of(dim), keepdim)


@maps(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return op.softmax(x, dim) if x.shape else op.exp(op.sub(x, x))


@maps(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return op.log_softmax(x, dim) if x.shape else op.sub(x, x)


# -- order, running values and selections ------------------------------------------------------------------------------


@maps(aten.cumsum.default)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None, *, wanted: Wanted) -> Tensor:
    return op.cumsum(_in(x, dtype), dim).to(wanted.dtype)


@maps(aten.cumprod.default)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None = None, *, wanted: Wanted) -> Tensor:
    return op.cumprod(_in(x, dtype), dim).to(wanted.dtype)


@maps(aten.cummax.default)
def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return op.cummax(x, dim)


@maps(aten.cummin.default)
def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return op.cummin(x, dim)


@maps(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return op.topk(x, k, dim, largest, sorted)


@maps(aten.sort.stable)
def sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return op.sort(x, dim, descending)


@maps(aten.histc.default)
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if not x.size:
        raise Unsupported("a tensor without elements")
    return op.histc(x, bins, min, max)


@maps(aten.searchsorted.Tensor)
def searchsorted(
    rows: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    wanted: Wanted,
) -> Tensor:
    if sorter is not None:
        raise Unsupported("rows whose order is told")
    return op.searchsorted(rows, values, right=right or side == "right").to(wanted.dtype)


@maps(aten.bucketize.Tensor)
def bucketize(
    values: Tensor, bounds: Tensor, *, out_int32: bool = False, right: bool = False, wanted: Wanted
) -> Tensor:
    return op.searchsorted(bounds, values, right=right).to(wanted.dtype)
