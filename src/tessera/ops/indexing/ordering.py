"""Order along an axis, by torch's library: `sort`, whose two results are `sort_values` and `sort_indices`.

Equal elements keep their order, and NaN ranks above all numbers, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.ir.anchors import along
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications import places
from tessera.ops.library import define
from tessera.ops.native_calls import NativeCall, TensorInMemory, are_contiguous
from tessera.ops.record import Named, Typed, dtype_error, elements

N: TypeAlias = Any

_RESULTS = ("sort_values", "sort_indices")


def _ordered(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    (x,) = operands
    if x.dtype.kind == "complex":
        raise dtype_error("sort", operands, "complex numbers have no order")
    if x.dtype.kind == "float" and x.dtype.itemsize == 1:
        raise dtype_error("sort", operands, "not defined on 8-bit floats", ['cast to a wider dtype: x.to("fp32")'])
    return [x.dtype]


def _sorted(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, cast[0] if name == "sort_values" else int64


def _comparisons(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """A comparison for each element and halving of the row."""
    extent = result.shape[attributes["axis"]]
    return elements(result.shape) * max(1, math.ceil(math.log2(extent + 1)))


def _sort(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.sort(
        inputs[0],
        stable=True,
        dim=attributes["axis"],
        descending=attributes["descending"],
        out=(outputs[0], outputs[1]),
    )


_KINDS = {torch.float32: "fp32", torch.int32: "int32", torch.int64: "int64"}
_MOST_STEPS = 1 << 15
"""Comparisons that take as long as a call of torch."""


def _natively(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """Short rows, into which each element is inserted."""
    (x,) = inputs
    axis = attributes["axis"]
    extent = x.shape[axis]
    kind = _KINDS.get(x.dtype)
    if kind is None or math.prod(x.shape[axis + 1 :]) != 1 or not are_contiguous((*inputs, *outputs)):
        return None
    rows = math.prod(x.shape[:axis])
    if rows * extent * extent > _MOST_STEPS:
        return None
    return NativeCall(f"{'descending' if attributes['descending'] else 'ascending'}_{kind}", (rows, extent))


def _values_reference(x: torch.Tensor, *, axis: int, descending: bool) -> torch.Tensor:
    return x.sort(stable=True, dim=axis, descending=descending).values


def _indices_reference(x: torch.Tensor, *, axis: int, descending: bool) -> torch.Tensor:
    return x.sort(stable=True, dim=axis, descending=descending).indices


def _values_gradient(g: N, operands: tuple[N], out: N, *, axis: int, descending: bool) -> tuple[N]:
    """The cotangent where the values came from."""
    (x,) = operands
    origin = call("sort_indices", x, axis=axis, descending=descending)
    return (call("scatter_along", g, origin, axis=axis, extent=x.shape[axis]),)


def _none(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


for _name, _reference, _gradient in (
    ("sort_values", _values_reference, _values_gradient),
    ("sort_indices", _indices_reference, _none),
):
    define(
        _name,
        _sort,
        {"axis": 0, "descending": False},
        operand_dtypes=_ordered,
        result=_sorted,
        known_anchor=along.row,
        flops=_comparisons,
        native=_natively,
        reference=_reference,
        gradient=_gradient,
        application=places.of_orders,
        joint=_RESULTS,
    )
