"""Tensors out of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.graphs.randomness import computes_mask, dropout_mask
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps

aten, prims = torch.ops.aten, torch.ops.prims


@maps(aten.full.default)
def full(shape: Sequence[int], value: float, dtype: object = None, *, wanted: Wanted) -> Tensor:
    return op.full(wanted.shape, _number(value, wanted), wanted.dtype)


@maps(aten.full_like.default, aten.new_full.default)
def full_like(x: Tensor, *given: object, dtype: object = None, wanted: Wanted) -> Tensor:
    value = given[-1]
    assert isinstance(value, bool | int | float)
    return op.full(wanted.shape, _number(value, wanted), wanted.dtype)


@maps(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(*given: object, dtype: object = None, wanted: Wanted) -> Tensor:
    return op.full(wanted.shape, _number(0, wanted), wanted.dtype)


@maps(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def empty(*given: object, dtype: object = None, wanted: Wanted) -> Tensor:
    """Elements that nobody has promised anything of, which cost nothing: kernels make them where they are read."""
    return op.full(wanted.shape, _number(0, wanted), wanted.dtype)


@maps(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(*given: object, dtype: object = None, wanted: Wanted) -> Tensor:
    return op.full(wanted.shape, _number(1, wanted), wanted.dtype)


@maps(aten.scalar_tensor.default)
def scalar_tensor(value: float, dtype: object = None, *, wanted: Wanted) -> Tensor:
    return op.full((), _number(value, wanted), wanted.dtype)


def _number(value: float, wanted: Wanted) -> float:
    """A number as its dtype has it: torch writes 1.5 to integers as 1."""
    kind = wanted.dtype.kind
    return bool(value) if kind == "bool" else int(value) if kind == "int" else float(value)


@maps(aten.arange.start_step)
def arange(start: float, end: float, step: float = 1, dtype: object = None, *, wanted: Wanted) -> Tensor:
    start, end, step = (int(each) if isinstance(each, bool) else each for each in (start, end, step))
    if wanted.dtype.kind != "float" and not all(isinstance(each, int) for each in (start, end, step)):
        raise Unsupported("integers by steps that are none")
    return op.arange(start, end, step, dtype=wanted.dtype)


@maps(aten.arange.start)
def arange_from(start: float, end: float, dtype: object = None, *, wanted: Wanted) -> Tensor:
    return arange(start, end, wanted=wanted)


@maps(aten.arange.default)
def arange_to(end: float, dtype: object = None, *, wanted: Wanted) -> Tensor:
    return arange(0, end, wanted=wanted)


@maps(prims.iota.default)
def iota(length: int, *, start: int, step: int, dtype: object, requires_grad: bool = False, wanted: Wanted) -> Tensor:
    return op.add(op.mul(op.arange(length), step), start).to(wanted.dtype)


@maps(dropout_mask)
def dropout_mask_of(seed: Tensor, size: Sequence[int], p: float, *, wanted: Wanted) -> Tensor:
    return op.ge(op.rand(wanted.shape, seed), op.full((), p, "fp32"))


def _computed_mask(seed: torch.Tensor, size: Sequence[int], p: float) -> torch.Tensor:
    return op.ge(op.rand(tuple(size), seed), op.full((), p, "fp32")).torch()


computes_mask(_computed_mask)
