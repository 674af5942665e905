"""Python values as IR attributes and types, interned, so that making an operation allocates no new attribute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    BFloat16Type,
    BoolAttr,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute

from tessera.dtypes import DType, dtype_of
from tessera.errors import IRError

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | Attribute"
"""What an attribute may be written as in Python."""

_ELEMENTS: dict[str, Attribute] = {
    "f64": Float64Type(),
    "f32": Float32Type(),
    "bf16": BFloat16Type(),
    "f16": Float16Type(),
    "f8E4M3FN": Float8E4M3FNType(),
    "f8E5M2": Float8E5M2Type(),
    "i64": IntegerType(64),
    "i32": IntegerType(32),
    "i8": IntegerType(8),
    "i1": IntegerType(1),
}
_DTYPES: dict[Attribute, DType] = {element: dtype_of(name) for name, element in _ELEMENTS.items()}

BOOLEAN = _ELEMENTS["i1"]
INT64 = _ELEMENTS["i64"]


def element_type(dtype: DType) -> Attribute:
    """The element type that tensors of `dtype` have; that of `tf32`, a math mode, is f32."""
    return _ELEMENTS[dtype.mlir]


def element_dtype(element: Attribute) -> DType:
    """The dtype of an element type; raises `IRError` when no dtype has it."""
    dtype = _DTYPES.get(element)
    if dtype is None:
        raise IRError(f"no dtype has the element type {element}")
    return dtype


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int | None, ...], element: Attribute) -> TensorType[Attribute]:
    """`tensor<...>` of `element` over `shape`; `None` is an extent known only at run time."""
    return TensorType(element, [DYNAMIC_INDEX if extent is None else extent for extent in shape])


@lru_cache(maxsize=4096)
def dimension_names(names: tuple[str, ...]) -> ArrayAttr[StringAttr]:
    """The `dims` attribute that names a result's symbolic extents."""
    return ArrayAttr([StringAttr(name) for name in names])


# Typed: True, 1 and 1.0 are equal keys in Python and three different attributes here.
@lru_cache(maxsize=4096, typed=True)
def _scalar(value: bool | int | float | str) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.from_bool(value)
    if isinstance(value, int):
        return IntegerAttr(value, 64)
    if isinstance(value, float):
        return FloatAttr(value, 64)
    return StringAttr(value)


@lru_cache(maxsize=4096)
def _array(elements: tuple[Attribute, ...]) -> Attribute:
    return ArrayAttr(elements)


def to_attribute(value: Value) -> Attribute:
    """The attribute of a Python value: bool is i1, int i64, float f64, a tuple an array; attributes pass unchanged."""
    if isinstance(value, Attribute):
        return value
    if isinstance(value, tuple):
        return _array(tuple(to_attribute(element) for element in value))
    return _scalar(value)


def to_value(attribute: Attribute) -> Value:
    """The Python value of an attribute made by `to_attribute` or written in text; other attributes pass unchanged."""
    match attribute:
        case IntegerAttr():
            number = attribute.value.data
            return bool(number) if attribute.type == BOOLEAN else number
        case FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
        case ArrayAttr():
            return tuple(to_value(element) for element in attribute.data)
        case _:
            return attribute


def shape_text(shape: Sequence[int]) -> str:
    """A shape as users read it: `(?, 128)`, with `?` for extents known only at run time."""
    inner = ", ".join("?" if extent == DYNAMIC_INDEX else str(extent) for extent in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
