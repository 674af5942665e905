"""`nextafter`: the number next to another one, by torch's library."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, bf16, fp32, fp64
from tessera.lazy.structures.promotion import broadcast_shape, common_dtype
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import sum_to
from tessera.ops.applications import maps
from tessera.ops.applications.rule import AbstractValue, Application
from tessera.ops.extension import only_float
from tessera.ops.library import define, per_element
from tessera.ops.record import Named, Typed, dtype_error, shape_error

N: TypeAlias = Any

_KNOWN = (fp64, fp32, bf16)
"""The dtypes of which torch knows the neighbours."""


def _operands(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    met = only_float(name, operands, attributes)
    if met[0] not in _KNOWN:
        raise dtype_error(name, operands, "defined on fp64, fp32 and bf16", ["cast to fp32"])
    return met


def _broadcast(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape = broadcast_shape([operand.shape for operand in operands])
    if shape is None:
        raise shape_error(name, operands, "extents must agree from the last dimension on, or be 1")
    return shape, common_dtype(operands)


def _nextafter(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    a, b = (each.to(outputs[0].dtype) for each in inputs)  # numbers are fp32 beside bf16
    torch.nextafter(a, b, out=outputs[0])


def _reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dtype = min(a.dtype, b.dtype, key=lambda each: each.itemsize)
    return torch.nextafter(a.to(dtype), b.to(dtype))


def _gradient(g: N, operands: tuple[N, N], out: N) -> tuple[N, None]:
    """The neighbour goes where the number goes; which way it lies does not matter to first order."""
    return sum_to(g, operands[0].shape), None


_of_pairs = maps.of_maps(2)


def _of_floats(chance: random.Random, x: AbstractValue) -> Application | None:
    return _of_pairs(chance, x) if x.dtype in _KNOWN else None


define(
    "nextafter",
    _nextafter,
    {},
    arity=(2, 2),
    operand_dtypes=_operands,
    result=_broadcast,
    flops=per_element(1),
    reference=_reference,
    gradient=_gradient,
    application=_of_floats,
)
