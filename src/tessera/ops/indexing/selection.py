"""Operators along one axis, by torch's library: `cumsum`, and `topk`, whose two results are the operators `topk_values`
and `topk_indices`: one call computes both where both are evaluated together.

NaN ranks above all numbers, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.errors import ArgumentError
from tessera.ir.anchors import along
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications import places
from tessera.ops.library import define
from tessera.ops.native_calls import MOST_BYTES, NativeCall, TensorInMemory, are_contiguous
from tessera.ops.record import Named, Typed, dtype_error, elements

N: TypeAlias = Any


def _numbers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    x = operands[0]
    if x.dtype.kind == "float" and x.dtype.itemsize == 1:
        raise dtype_error(name, operands[:1], "not defined on 8-bit floats", ['cast to a wider dtype: x.to("fp32")'])
    if x.dtype.kind == "complex":
        raise dtype_error(name, operands[:1], "not defined on complex numbers")
    return [operand.dtype for operand in operands]


def _ranked(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype.kind == "bool":
        raise dtype_error("topk", operands, "not defined on bool", ['cast to integers: x.to("int32")'])
    return _numbers("topk", operands, attributes)


# -- cumsum -----------------------------------------------------------------------------------------------------------


def _summed(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, cast[0] if cast[0].kind == "float" else int64


def _one_per_element(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return elements(result.shape)


def _cumsum_reference(x: torch.Tensor, *, axis: int, reverse: bool) -> torch.Tensor:
    return x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)


def _cumsum_gradient(g: N, operands: tuple[N], out: N, *, axis: int, reverse: bool) -> tuple[N]:
    return (call("cumsum", g, axis=axis, reverse=not reverse),)


def _cumsum(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x,), (result,), axis = inputs, outputs, attributes["axis"]
    if attributes["reverse"]:
        result.copy_(torch.cumsum(x.flip(axis), axis, dtype=result.dtype).flip(axis))
    else:
        torch.cumsum(x, axis, dtype=result.dtype, out=result)


_WHOLE = {torch.bool: "bool", torch.int32: "int32", torch.int64: "int64"}


def _summed_natively(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """Whole numbers, whose sums have no order."""
    (x,), axis = inputs, attributes["axis"]
    kind = _WHOLE.get(x.dtype)
    if (
        kind is None
        or attributes["reverse"]
        or math.prod(x.shape[axis + 1 :]) != 1
        or not are_contiguous((*inputs, *outputs))
    ):
        return None
    if elements(x.shape) * 8 > MOST_BYTES:
        return None
    return NativeCall(f"added_up_{kind}", (math.prod(x.shape[:axis]), x.shape[axis]))


define(
    "cumsum",
    _cumsum,
    {"axis": 0, "reverse": False},
    operand_dtypes=_numbers,
    result=_summed,
    known_anchor=along.row,
    flops=_one_per_element,
    native=_summed_natively,
    reference=_cumsum_reference,
    gradient=_cumsum_gradient,
    application=places.of_running_sums,
)

# -- topk -------------------------------------------------------------------------------------------------------------

_TOPK: Named = {"k": 1, "axis": 0, "largest": True, "ordered": True}
_RESULTS = ("topk_values", "topk_indices")


def _selected(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape, k, axis = operands[0].shape, attributes["k"], attributes["axis"]
    if not 0 <= k <= shape[axis]:
        raise ArgumentError(f"topk: k={k} of {shape[axis]} elements along axis {axis} of a tensor of shape {shape}")
    return (*shape[:axis], k, *shape[axis + 1 :]), cast[0] if name == "topk_values" else int64


def _comparisons(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """A comparison for each element and halving of k."""
    return elements(operands[0].shape) * max(1, math.ceil(math.log2(attributes["k"] + 1)))


def _without_k(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {**attributes, "k": None}


def _topk(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.topk(
        inputs[0],
        attributes["k"],
        attributes["axis"],
        attributes["largest"],
        attributes["ordered"],
        out=(outputs[0], outputs[1]),
    )


_KINDS = {torch.float32: "fp32", torch.int32: "int32", torch.int64: "int64"}
_MOST_STEPS = 1 << 15
"""Comparisons that take as long as a call of torch."""


def _chosen_natively(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """Few of short rows."""
    (x,), axis, k = inputs, attributes["axis"], attributes["k"]
    kind, count = _KINDS.get(x.dtype), elements(x.shape)
    if (
        kind is None
        or not attributes["ordered"]
        or math.prod(x.shape[axis + 1 :]) != 1
        or not are_contiguous((*inputs, *outputs))
    ):
        return None
    if not count * k or count * k > _MOST_STEPS:
        return None
    way = "greatest" if attributes["largest"] else "least"
    return NativeCall(f"{way}_{kind}", (math.prod(x.shape[:axis]), x.shape[axis], k))


def _values_reference(x: torch.Tensor, *, k: int, axis: int, largest: bool, ordered: bool) -> torch.Tensor:
    return x.topk(k, axis, largest, ordered).values


def _indices_reference(x: torch.Tensor, *, k: int, axis: int, largest: bool, ordered: bool) -> torch.Tensor:
    return x.topk(k, axis, largest, ordered).indices


def _values_gradient(g: N, operands: tuple[N], out: N, *, k: int, axis: int, largest: bool, ordered: bool) -> tuple[N]:
    """The cotangent where the values came from, among zeros."""
    (x,) = operands
    chosen = call("topk_indices", x, k=k, axis=axis, largest=largest, ordered=ordered)
    return (call("scatter_along", g, chosen, axis=axis, extent=x.shape[axis]),)


def _none(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


for _name, _reference, _gradient in (
    ("topk_values", _values_reference, _values_gradient),
    ("topk_indices", _indices_reference, _none),
):
    define(
        _name,
        _topk,
        _TOPK,
        operand_dtypes=_ranked,
        result=_selected,
        known_anchor=along.row,
        flops=_comparisons,
        native=_chosen_natively,
        reference=_reference,
        gradient=_gradient,
        application=places.of_ranks,
        symbolic=_without_k,
        joint=_RESULTS,
    )

# -- scatter_along ----------------------------------------------------------------------------------------------------


def _spread(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape, axis = operands[0].shape, attributes["axis"]
    return (*shape[:axis], attributes["extent"], *shape[axis + 1 :]), cast[0]


def _without_extent(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {**attributes, "extent": None}


def _scatter_reference(x: torch.Tensor, places: torch.Tensor, *, axis: int, extent: int) -> torch.Tensor:
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    return torch.zeros(shape, dtype=x.dtype).scatter(axis, places.long(), x)


def _scatter_gradient(g: N, operands: tuple[N, N], out: N, *, axis: int, extent: int) -> tuple[N, None]:
    return call("gather", g, operands[1], axis=axis), None


def _scatter(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, places), (result,) = inputs, outputs
    result.zero_().scatter_(attributes["axis"], places, x)


define(
    "scatter_along",
    _scatter,
    {"axis": 0, "extent": 1},
    arity=(2, 2),
    operand_dtypes=_numbers,
    result=_spread,
    known_anchor=along.row,
    reference=_scatter_reference,
    gradient=_scatter_gradient,
    application=places.of_scattering,
    symbolic=_without_extent,
)
