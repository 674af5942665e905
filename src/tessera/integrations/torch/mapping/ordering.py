"""Order, running values and selections along a dimension."""

from __future__ import annotations

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps

aten = torch.ops.aten


def _in(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


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
