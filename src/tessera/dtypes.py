"""Element types and how they combine, as torch combines them.

Every `DType` is one object per process: compare with `is` or `==`, use as a dictionary key. It also equals the names
and the torch or numpy dtype that mean it (`x.dtype == torch.float32`, `x.dtype == "fp32"`); those are no keys for it.

`tf32` is a math mode (10-bit mantissas inside a matrix product): its elements are stored as fp32. `SUPPORTED` holds
those that kernels compute with; the others are declared names.

The 8-bit floats are those of the Open Compute Project (OFP8, 2023). `fp8_e4m3` (4 bits of exponent, 3 of mantissa, 448
at most) has no infinities: what is too large, infinities included, becomes 448, as in torch 2.13 and as GPUs convert.
`fp8_e5m2` (5 and 2 bits, 57344 at most) has them, and what is too large becomes infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy
import torch

from tessera.errors import DTypeError

Kind = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, eq=False)
class DType:
    """One element type, stored as the torch dtype `torch` in `itemsize` bytes; `mlir` is the name of its MLIR type."""

    name: str
    kind: Kind
    itemsize: int
    mlir: str
    torch: torch.dtype

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an integer dtype without negative numbers."""
        return self.kind == "int" and not self.torch.is_signed

    @property
    def bits(self) -> int:
        """Bits of one element as stored; 8 for `bool_`, which takes a byte."""
        return 8 * self.itemsize

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, torch.dtype):
            return _BY_TORCH.get(other) is self
        if isinstance(other, str):
            return _BY_NAME.get(other.removeprefix("torch.")) is self
        return _of_numpy(other) is self

    __hash__ = object.__hash__  # as of numpy's dtypes, which equal their names, too

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # Identity must survive pickling into tuning workers and copying.
        return dtype_of, (self.name,)


bool_ = DType("bool", "bool", 1, "i1", torch.bool)
uint8 = DType("uint8", "int", 1, "ui8", torch.uint8)
int8 = DType("int8", "int", 1, "i8", torch.int8)
int16 = DType("int16", "int", 2, "i16", torch.int16)
int32 = DType("int32", "int", 4, "i32", torch.int32)
int64 = DType("int64", "int", 8, "i64", torch.int64)
fp8_e4m3 = DType("fp8_e4m3", "float", 1, "f8E4M3FN", torch.float8_e4m3fn)
fp8_e5m2 = DType("fp8_e5m2", "float", 1, "f8E5M2", torch.float8_e5m2)
fp16 = DType("fp16", "float", 2, "f16", torch.float16)
bf16 = DType("bf16", "float", 2, "bf16", torch.bfloat16)
tf32 = DType("tf32", "float", 4, "f32", torch.float32)
fp32 = DType("fp32", "float", 4, "f32", torch.float32)
fp64 = DType("fp64", "float", 8, "f64", torch.float64)
complex64 = DType("complex64", "complex", 8, "complex<f32>", torch.complex64)
complex128 = DType("complex128", "complex", 16, "complex<f64>", torch.complex128)

ALL = (
    *(bool_, uint8, int8, int16, int32, int64),
    *(fp8_e4m3, fp8_e5m2, fp16, bf16, tf32, fp32, fp64),
    *(complex64, complex128),
)
"""Every declared dtype, narrowest kind and width first."""

COMPLEX = frozenset((complex64, complex128))
"""Pairs of floats, as torch stores them: kernels compute with the parts (`ops/complexes.py`)."""

FLOAT8 = frozenset((fp8_e4m3, fp8_e5m2))
"""The 8-bit floats."""

SUPPORTED = frozenset(ALL) - {tf32}
"""The dtypes that tensors may have."""

_BY_TORCH = {dtype.torch: dtype for dtype in ALL if dtype is not tf32}
_ALIASES = {
    "float8_e4m3fn": fp8_e4m3,
    "float8_e5m2": fp8_e5m2,
    "float16": fp16,
    "half": fp16,
    "bfloat16": bf16,
    "float32": fp32,
    "float": fp32,
    "float64": fp64,
    "double": fp64,
    "short": int16,
    "int": int32,
    "long": int64,
}
_BY_NAME = {dtype.name: dtype for dtype in ALL} | {dtype.mlir: dtype for dtype in ALL if dtype is not tf32} | _ALIASES
_BY_PYTHON_TYPE: dict[Any, DType] = {bool: bool_, int: int64, float: fp64}
_RANK: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2, "complex": 3}
_ACCUMULATORS = {
    uint8: int32,
    int8: int32,
    int16: int32,
    fp8_e4m3: fp32,
    fp8_e5m2: fp32,
    fp16: fp32,
    bf16: fp32,
    tf32: fp32,
}


def dtype_of(x: object) -> DType:
    """The dtype that `x` names.

    `x` is a `DType`, a name ("fp32", "float32", "f32"), a torch dtype, a numpy dtype or scalar type, or one of the
    types `bool`, `int` and `float`. Names and Python types mean what they mean to torch: "float" is fp32, the type
    `float` is fp64. Raises DTypeError for all else.
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, torch.dtype):
        found = _BY_TORCH.get(x)
    elif isinstance(x, str):
        found = _BY_NAME.get(x.removeprefix("torch."))
    else:
        found = _BY_PYTHON_TYPE.get(x) if isinstance(x, type) else None
        found = found or _of_numpy(x)
    if found is None:
        raise DTypeError(f"{x!r} is no dtype of Tessera", hints=[f"dtypes are {', '.join(map(repr, ALL))}"])
    return found


def _of_numpy(x: object) -> DType | None:
    if isinstance(x, numpy.dtype) or (isinstance(x, type) and issubclass(x, numpy.generic)):
        kind = numpy.dtype(x)
        # Tessera reads memory as it lies; an array in foreign byte order has no dtype here.
        return _BY_NAME.get(kind.name) if kind.isnative else None
    return None


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of a result of `a` and `b`, both of tensors with dimensions; equal to `torch.promote_types`.

    Raises DTypeError where torch has no common type (fp8 with anything else).
    """
    if a is b:
        return a
    try:
        return _BY_TORCH[torch.promote_types(a.torch, b.torch)]
    except RuntimeError as error:
        raise DTypeError(f"{a} and {b} have no common dtype", hints=_casts(a, b)) from error


def _casts(a: DType, b: DType) -> list[str]:
    """What to do about two dtypes that do not meet by themselves."""
    if a in FLOAT8 and b in FLOAT8:
        return ['cast both to a wider dtype: x.to("bf16")']
    narrow, wide = (a, b) if a in FLOAT8 else (b, a)
    wide = wide if wide.kind == "float" else fp32
    return [
        f'cast the {narrow} tensor: x.to("{wide}")',
        "op.matmul and op.gemm multiply fp8 by wider floats as they are",
    ]


@cache
def promote_product(a: DType, b: DType) -> DType:
    """The dtype of a matrix product of `a` and `b`: that of `promote`, and the wider one where fp8 meets another float.

    Every fp8 number is one of each wider float, so nothing is rounded on the way. Of the two fp8 dtypes neither holds
    the other: their product has the dtype its sums are formed in, fp32, and is rounded only where the user says so.
    Raises DTypeError for fp8 with integers or bools.
    """
    if a is not b and a.kind == b.kind == "float":
        if a in FLOAT8 and b in FLOAT8:
            return fp32
        if a in FLOAT8 or b in FLOAT8:
            return b if a in FLOAT8 else a
    return promote(a, b)


def promote_weak(dtype: DType, weak: DType) -> DType:
    """The dtype of a result of a tensor of `dtype` that has dimensions and one of `weak` that has none.

    `weak` decides only where its kind is the wider one (bool < int < float), as in torch: int32 with a zero-dimensional
    int64 stays int32, int32 with a zero-dimensional fp64 becomes fp64.
    """
    if _RANK[weak.kind] <= _RANK[dtype.kind]:
        return dtype
    narrowed = weak.kind == "complex" and dtype.kind == "float" and dtype not in FLOAT8
    return complex_of(dtype) if narrowed else promote(dtype, weak)


def promote_scalar(dtype: DType, value: bool | int | float) -> DType:
    """The dtype of a result of a tensor of `dtype` and a Python number; equal to `torch.result_type`."""
    return promote_weak(dtype, scalar_dtype(value))


def scalar_dtype(value: bool | int | float) -> DType:
    """The dtype torch gives a Python number: bool, int64 or torch's default dtype. Raises DTypeError for all else."""
    if isinstance(value, bool | numpy.bool_):
        return bool_
    if isinstance(value, int):
        return int64
    if isinstance(value, float):
        return dtype_of(torch.get_default_dtype())
    raise DTypeError(f"{value!r} is no real number")


@cache
def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide is narrow or narrow.kind == "bool":
        return wide.kind != "bool" or narrow.kind == "bool"
    if wide.kind == narrow.kind == "float":
        a, b = torch.finfo(wide.torch), torch.finfo(narrow.torch)
        return a.eps <= b.eps and a.max >= b.max and a.smallest_normal <= b.smallest_normal
    if not wide.kind == narrow.kind == "int":
        return False
    outer, inner = torch.iinfo(wide.torch), torch.iinfo(narrow.torch)
    return outer.min <= inner.min and inner.max <= outer.max


def wrapped(value: int, dtype: DType) -> int:
    """The integer of an integer dtype that a whole number becomes when it wraps around: 300 is 44 of `uint8`."""
    limits = torch.iinfo(dtype.torch)
    return (value - limits.min) % (1 << dtype.bits) + limits.min


def accumulator(dtype: DType) -> DType:
    """The dtype in which products and sums are formed: fp32 for narrower floats, int32 for narrower integers, else
    `dtype`.
    """
    return _ACCUMULATORS.get(dtype, dtype)


def real_of(dtype: DType) -> DType:
    """The dtype of the parts of a complex number; of any other dtype, itself."""
    return {complex64: fp32, complex128: fp64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex dtype that holds numbers of a dtype, as torch promotes them: complex128 for fp64, else complex64."""
    return complex128 if dtype in (fp64, complex128) else complex64
