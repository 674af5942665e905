"""Dtypes as the array API standard asks about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tessera import dtypes
from tessera.doors.array_api.creation import on_device
from tessera.doors.calls.nodes import node
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.typing import ArrayLike, DTypeLike

_KINDS: Final[Mapping[str, Callable[[dtypes.DType], bool]]] = {
    "bool": lambda dtype: dtype.kind == "bool",
    "signed integer": lambda dtype: dtype.kind == "int" and not dtype.is_unsigned,
    "unsigned integer": lambda dtype: dtype.is_unsigned,
    "integral": lambda dtype: dtype.kind == "int",
    "real floating": lambda dtype: dtype.kind == "float",
    "complex floating": lambda dtype: dtype.kind == "complex",
    "numeric": lambda dtype: dtype.kind != "bool",
}


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: Any = True, device: object = None) -> Tensor:
    """x in another dtype."""
    return on_device(node(x).to(dtypes.dtype_of(dtype)), device)


def can_cast(from_: Any, to: object, /) -> Any:
    """Whether type promotion leads from one dtype to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else dtypes.dtype_of(from_)
    target = dtypes.dtype_of(to)
    return dtypes.promote(source, target) is target


def finfo(type: Any, /) -> Any:
    """Limits of a floating-point dtype, as torch says them."""
    return torch.finfo(dtypes.real_of(type.dtype if isinstance(type, Tensor) else dtypes.dtype_of(type)).torch)


def iinfo(type: Any, /) -> Any:
    """Limits of an integer dtype, as torch says them."""
    return torch.iinfo((type.dtype if isinstance(type, Tensor) else dtypes.dtype_of(type)).torch)


def isdtype(dtype: DTypeLike, kind: Any) -> Any:
    """Whether a dtype is another, of a kind, or one of several."""
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, each) for each in kind]
    found = dtypes.dtype_of(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind](found)
    return found is dtypes.dtype_of(kind)


def result_type(*arrays_and_dtypes: Any) -> dtypes.DType:
    """The dtype in which operands meet: numbers after tensors and dtypes."""
    known = [each for each in arrays_and_dtypes if not isinstance(each, int | float | complex)]
    if not known:
        raise ArgumentError("result_type of numbers alone", hints=["a tensor or a dtype among them"])
    found = [each.dtype if isinstance(each, Tensor) else dtypes.dtype_of(each) for each in known]
    met = found[0]
    for each in found[1:]:
        met = dtypes.promote(met, each)
    for number in arrays_and_dtypes:
        if isinstance(number, complex):
            met = dtypes.complex_of(met)
        elif isinstance(number, int | float):
            met = dtypes.promote_scalar(met, number)
    return met
