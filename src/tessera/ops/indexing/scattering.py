"""Elements of a tensor replaced at places along one axis, and the extremes and products of what meets at a place:
`scatter`, `scatter_extreme` and `scatter_product`, by torch's library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal
from tessera.ops.applications import places
from tessera.ops.indexing.records import named_index, refuse_out_of_range, scattered_shapes, widened, with_indices
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, elements

N: TypeAlias = Any


def _result(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    scattered_shapes(name, operands, attributes["axis"])
    return operands[0].shape, cast[0]


def _met(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The elements of a source that have an index: torch's own gradient asks for as many as there are."""
    return x[tuple(slice(extent) for extent in index.shape)]


def _first(x: N, shape: Shape) -> N:
    """As `_met`, of a node."""
    if x.shape == shape:
        return x
    return call("slice", x, starts=(0,) * len(shape), sizes=shape, steps=(1,) * len(shape))


def _filled_up(x: N, shape: Shape) -> N:
    """The transpose of `_first`: zeros where no index is."""
    after = tuple(there - own for own, there in zip(x.shape, shape, strict=True))
    if not any(after):
        return x
    return call("pad", x, literal(0, x.dtype), before=(0,) * len(after), after=after, mode="constant")


# -- scatter ----------------------------------------------------------------------------------------------------------


def _scatter_reference(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int) -> torch.Tensor:
    refuse_out_of_range("scatter", index, x.shape[axis])
    return x.scatter(axis, index, _met(source, index))


def _scatter_gradient(g: N, operands: tuple[N, N, N], out: N, *, axis: int) -> tuple[N, None, N]:
    """What is replaced gets none; neither do elements that a later one at the same place has replaced."""
    x, index, source = operands
    shape = index.shape
    nothing = call("broadcast_to", literal(0, g.dtype), shape=shape)
    given = call("gather", g, index, axis=axis)
    if shape[axis] > 1 and elements(shape):
        column = tuple(extent if d == axis else 1 for d, extent in enumerate(shape))
        numbers = call("broadcast_to", call("iota", shape=column), shape=shape)
        none = call("broadcast_to", literal(0, int64), shape=x.shape)
        last = call("gather", call("scatter", none, index, numbers, axis=axis), index, axis=axis)
        given = call("where", call("eq", last, numbers), given, literal(0, g.dtype))
    return call("scatter", g, index, nothing, axis=axis), None, _filled_up(given, source.shape)


def _scatter(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index, source), (result,), axis = inputs, outputs, attributes["axis"]
    # Before anything is written: the result may be the operand's own memory.
    refuse_out_of_range("scatter", index, x.shape[axis])
    if result.data_ptr() != x.data_ptr():
        result.copy_(x)
    result.scatter_(axis, index, source)


define(
    "scatter",
    _scatter,
    {"axis": 0},
    arity=(3, 3),
    operand_dtypes=with_indices(1),
    result=_result,
    reference=_scatter_reference,
    gradient=_scatter_gradient,
    application=places.of_lone_places,
    in_place=True,
)

# -- scatter_extreme --------------------------------------------------------------------------------------------------


def _ordered(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype.kind == "complex":
        raise dtype_error(name, operands, "complex numbers have no order")
    dtypes: list[DType] = with_indices(1)(name, operands, attributes)
    return dtypes


def _each_compared(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return elements(operands[-1].shape)


def _torch_name(largest: bool) -> str:
    return "amax" if largest else "amin"


def _extreme_reference(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int, largest: bool
) -> torch.Tensor:
    refuse_out_of_range("scatter_reduce", index, x.shape[axis])
    return x.scatter_reduce(axis, index, _met(source, index), _torch_name(largest))


def _extreme_gradient(g: N, operands: tuple[N, N, N], out: N, *, axis: int, largest: bool) -> tuple[N, None, N]:
    """To the extreme of each place, in equal parts where several are."""
    x, index, source = operands
    met = _first(source, index.shape)
    own = call("cast", call("eq", x, out), dtype=g.dtype)
    others = call("cast", call("eq", met, call("gather", out, index, axis=axis)), dtype=g.dtype)
    share = g / call("scatter_add", own, index, others, axis=axis)
    given = others * call("gather", share, index, axis=axis)
    return own * share, None, _filled_up(given, source.shape)


def _extreme(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index, source), (result,), axis = inputs, outputs, attributes["axis"]
    result.copy_(x)
    with named_index("scatter_reduce", index, x.shape[axis]):
        result.scatter_reduce_(axis, index, source, _torch_name(attributes["largest"]))


define(
    "scatter_extreme",
    _extreme,
    {"axis": 0, "largest": True},
    arity=(3, 3),
    operand_dtypes=_ordered,
    result=_result,
    flops=_each_compared,
    reference=_extreme_reference,
    gradient=_extreme_gradient,
    application=places.of_scattered_extremes,
)

# -- scatter_product --------------------------------------------------------------------------------------------------


def _numbers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype.kind == "complex":
        raise dtype_error("scatter_reduce", operands, "not defined on complex numbers")
    dtypes: list[DType] = with_indices(1)("scatter_reduce", operands, attributes)
    return dtypes


def _product_reference(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int) -> torch.Tensor:
    refuse_out_of_range("scatter_reduce", index, x.shape[axis])
    return x.scatter_reduce(axis, index, _met(source, index), "prod")


def _partial_products(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int) -> torch.Tensor:
    """Infinite where a product leaves fp32, in which narrow dtypes are multiplied."""
    size, met = x.double().abs().clamp_min(1.0), _met(source, index).double().abs().clamp_min(1.0)
    largest = size.scatter_reduce(axis, index, met, "prod")
    return torch.where(largest > torch.finfo(torch.float32).max, torch.inf, 0.0)


def _product_gradient(g: N, operands: tuple[N, N, N], out: N, *, axis: int) -> tuple[N, None, N]:
    """The product of the others: of an element that is the only zero at its place, the product without it."""
    x, index, source = operands
    met = _first(source, index.shape)
    own = call("scatter_product", call("broadcast_to", literal(1, x.dtype), shape=x.shape), index, source, axis=axis)
    is_zero = call("eq", met, literal(0, met.dtype))
    others = call("where", is_zero, literal(1, met.dtype), met)
    zeros = call("cast", call("eq", x, literal(0, x.dtype)), dtype=int64)
    zeros = call("scatter_add", zeros, index, call("cast", is_zero, dtype=int64), axis=axis)
    alone = call("eq", call("gather", zeros, index, axis=axis), literal(1, int64))
    rest = call("gather", g * call("scatter_product", x, index, others, axis=axis), index, axis=axis)
    quotient = call("gather", g * out, index, axis=axis) / others
    of_zero = call("where", alone, rest, literal(0, g.dtype))
    return g * own, None, _filled_up(call("where", is_zero, of_zero, quotient), source.shape)


def _product(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index, source), (result,), axis = inputs, outputs, attributes["axis"]
    wide = widened(result).copy_(x)
    with named_index("scatter_reduce", index, x.shape[axis]):
        wide.scatter_reduce_(axis, index, source.to(wide.dtype), "prod")
    if wide is not result:
        result.copy_(wide)


define(
    "scatter_product",
    _product,
    {"axis": 0},
    arity=(3, 3),
    operand_dtypes=_numbers,
    result=_result,
    flops=_each_compared,
    reference=_product_reference,
    gradient=_product_gradient,
    application=places.of_scattered_sums,
    terms=_partial_products,
)
