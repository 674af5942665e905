"""MLIR's types and attributes for dtypes, buffers and lists, as Tile IR is built of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    BFloat16Type,
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    MemRefType,
    NoneAttr,
    Signedness,
    StridedLayoutAttr,
    bf16,
    f8E4M3FN,
    f8E5M2,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute

from tessera.dtypes import DType

ElementType: TypeAlias = (
    IntegerType | Float8E4M3FNType | Float8E5M2Type | Float16Type | BFloat16Type | Float32Type | Float64Type
)
_ELEMENT_TYPES: dict[str, ElementType] = {
    "f32": f32,
    "f64": f64,
    "bf16": bf16,
    "f16": f16,
    "f8E4M3FN": f8E4M3FN,
    "f8E5M2": f8E5M2,
    "i1": i1,
    "ui8": IntegerType(8, Signedness.UNSIGNED),
    "i8": i8,
    "i16": i16,
    "i32": i32,
    "i64": i64,
}


def element_type(dtype: DType) -> ElementType:
    """The MLIR element type of a dtype."""
    return _ELEMENT_TYPES[dtype.mlir]


def float_type(dtype: DType) -> AnyFloat:
    """The MLIR element type of a floating-point dtype."""
    kind = element_type(dtype)
    assert isinstance(kind, AnyFloat)
    return kind


def integers_attribute(values: Sequence[int]) -> DenseArrayBase:
    """An `array<i64: ...>` attribute."""
    return DenseArrayBase.from_list(i64, list(values))


def flags_attribute(values: Sequence[bool]) -> DenseArrayBase:
    """An `array<i1: ...>` attribute."""
    return DenseArrayBase.from_list(i1, [int(value) for value in values])


def buffer_type(
    dtype: DType, strides: Sequence[int | None], shape: Sequence[int] | None = None
) -> MemRefType[Attribute]:
    """A memref whose strides are static where an integer is given; extents dynamic unless `shape` says otherwise."""
    extents = [DYNAMIC_INDEX] * len(strides) if shape is None else list(shape)
    layout = StridedLayoutAttr([NoneAttr() if stride is None else stride for stride in strides])
    return MemRefType(element_type(dtype), extents, layout)


def row_major(shape: Sequence[int]) -> list[int | None]:
    """The strides of a static shape whose last dimension is contiguous."""
    return [math.prod(shape[place + 1 :]) for place in range(len(shape))]
