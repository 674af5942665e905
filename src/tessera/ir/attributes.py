"""Python values as IR attributes and types, interned, so that making an operation allocates no new attribute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    BFloat16Type,
    BoolAttr,
    ComplexType,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    Signedness,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | Attribute"
"""What an attribute may be written as in Python."""

ELEMENT_TYPES: dict[str, Attribute] = {
    "fp64": Float64Type(),
    "fp32": Float32Type(),
    "bf16": BFloat16Type(),
    "fp16": Float16Type(),
    "fp8_e4m3": Float8E4M3FNType(),
    "fp8_e5m2": Float8E5M2Type(),
    "int64": IntegerType(64),
    "int32": IntegerType(32),
    "int16": IntegerType(16),
    "int8": IntegerType(8),
    "uint8": IntegerType(8, Signedness.UNSIGNED),
    "bool": IntegerType(1),
    "complex64": ComplexType(Float32Type()),
    "complex128": ComplexType(Float64Type()),
}
"""The element type of each dtype, by the dtype's name. (`tf32` is a math mode: its elements are fp32.)"""

DTYPE_NAMES: dict[Attribute, str] = {element: name for name, element in ELEMENT_TYPES.items()}
"""The inverse of `ELEMENT_TYPES`."""

BOOLEAN = ELEMENT_TYPES["bool"]
INT64 = ELEMENT_TYPES["int64"]


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int | None, ...], element: Attribute) -> TensorType[Attribute]:
    """`tensor<...>` of `element` over `shape`; `None` is an extent known only at run time."""
    return TensorType(element, [DYNAMIC_INDEX if extent is None else extent for extent in shape])


@lru_cache(maxsize=4096)
def dimension_names(names: tuple[str, ...]) -> ArrayAttr[StringAttr]:
    """The `dims` attribute that names a result's symbolic extents."""
    return ArrayAttr([StringAttr(name) for name in names])


def _scalar(value: bool | int | float | str) -> Attribute:
    # 0.0 and -0.0 are equal keys in Python, too.
    return _signed(value, math.copysign(1.0, value) if isinstance(value, float) else 1.0)


# Typed: True, 1 and 1.0 are equal keys in Python and three different attributes here.
@lru_cache(maxsize=4096, typed=True)
def _signed(value: bool | int | float | str, sign: float) -> Attribute:
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


def integers_of(attribute: Attribute) -> tuple[int, ...]:
    """The integers of an array attribute."""
    assert isinstance(attribute, ArrayAttr)
    return tuple([_integer(element) for element in attribute.data])


def _integer(attribute: Attribute) -> int:
    assert isinstance(attribute, IntegerAttr)
    return attribute.value.data


def names_of(attribute: Attribute) -> tuple[str, ...]:
    """The strings of an array attribute: the inverse of `dimension_names`."""
    assert isinstance(attribute, ArrayAttr)
    return tuple([_text(element) for element in attribute.data])


def _text(attribute: Attribute) -> str:
    assert isinstance(attribute, StringAttr)
    return attribute.data


def shape_text(shape: Sequence[int]) -> str:
    """A shape as users read it: `(?, 128)`, with `?` for extents known only at run time."""
    inner = ", ".join("?" if extent == DYNAMIC_INDEX else str(extent) for extent in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
