"""Places in rows that are in order, by torch's library: `searchsorted`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.lazy.structures.promotion import common_dtype
from tessera.lazy.structures.structure import Shape
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, like
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, elements, shape_error

N: TypeAlias = Any


def _ordered(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    met = common_dtype(operands)
    if met.kind not in ("int", "float") or (met.kind == "float" and met.itemsize == 1):
        raise dtype_error(name, operands, "defined on integers and on floats of 16 bits and more", ["cast to fp32"])
    return [met] * 2


def _places(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    row, values = operands[0].shape, operands[1].shape
    if not row or (len(row) > 1 and row[:-1] != values[:-1]):
        raise shape_error(name, operands, "one row, or as many rows as there are of values")
    return values, int64


def _comparisons(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """A comparison for each value and halving of the row."""
    return elements(result.shape) * max(1, math.ceil(math.log2(operands[0].shape[-1] + 1)))


def _searchsorted(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    row, values = (each.contiguous() for each in inputs)  # torch warns of others, and copies them too
    torch.searchsorted(row, values, right=attributes["right"], out=outputs[0])


def _reference(row: torch.Tensor, values: torch.Tensor, *, right: bool) -> torch.Tensor:
    return torch.searchsorted(row.contiguous(), values.contiguous(), right=right)


def _none(g: N, operands: tuple[N, N], out: N, **attributes: Any) -> tuple[None, None]:
    return None, None


def _in_short_rows(chance: random.Random, x: AbstractValue) -> Application | None:
    """Rows of one element, which are in order whatever it is, and values that no rounding moves past it."""
    if x.dtype.kind not in ("int", "float") or (x.dtype.kind == "float" and x.dtype.itemsize == 1):
        return None
    attributes = {"right": chance.random() < 0.5}
    if x.dtype.kind == "int":
        return Application((WantedOperand((1,), x.dtype), like(x)), attributes)
    return Application((WantedOperand((1,), x.dtype, 9), WantedOperand(x.shape, x.dtype, 9)), attributes)


define(
    "searchsorted",
    _searchsorted,
    {"right": False},
    arity=(2, 2),
    operand_dtypes=_ordered,
    result=_places,
    flops=_comparisons,
    reference=_reference,
    gradient=_none,
    application=_in_short_rows,
)
