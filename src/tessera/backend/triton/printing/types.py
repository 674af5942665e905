"""Element types: MLIR's and Triton's names, and literals."""

from __future__ import annotations

import math
from ctypes import c_float
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute

from tessera.errors import CompileError
from tessera.ir.attributes import DTYPE_NAMES


@dataclass(frozen=True)
class TritonElement:
    """An element type: its name in `triton.language`, and what it is."""

    triton: str
    kind: str
    bits: int

    @property
    def short(self) -> str:
        """Triton's name of it in the signatures of kernels ("bf16", "i64", "fp8e4nv")."""
        if self.triton == "uint8":
            return "u8"
        if self.triton == "bfloat16" or self.bits == 8:
            return self.triton.replace("bfloat", "bf").replace("float", "fp").replace("int", "i")
        return f"{'fp' if self.is_float else 'i'}{self.bits}"

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_narrow(self) -> bool:
        """Whether arithmetic on it is done in fp32."""
        return self.is_float and self.bits < 32

    @property
    def takes_literals(self) -> bool:
        """Whether to every function of Triton a Python number beside a tile of this type is one of this type."""
        return self.triton in ("float32", "int32")

    def literal(self, value: float | int) -> str:
        """A number of this type as Python text."""
        if self.kind == "bool":
            return str(bool(value))
        if not self.is_float:
            return str(int(value))
        if not math.isfinite(value):
            return f'float("{float(value)}")'
        return _shortest(value) if self.bits == 32 else repr(float(value))


def _shortest(value: float) -> str:
    """The fewest digits that are this number in fp32; nine always are."""
    texts = (repr(float(f"{value:.{digits}g}")) for digits in range(1, 10))
    return next((text for text in texts if c_float(float(text)).value == c_float(value).value), repr(float(value)))


_ELEMENTS = {
    "fp64": TritonElement("float64", "float", 64),
    "fp32": TritonElement("float32", "float", 32),
    "bf16": TritonElement("bfloat16", "float", 16),
    "fp16": TritonElement("float16", "float", 16),
    "fp8_e4m3": TritonElement("float8e4nv", "float", 8),
    "fp8_e5m2": TritonElement("float8e5", "float", 8),
    "int64": TritonElement("int64", "int", 64),
    "int32": TritonElement("int32", "int", 32),
    "int16": TritonElement("int16", "int", 16),
    "int8": TritonElement("int8", "int", 8),
    "uint8": TritonElement("uint8", "int", 8),
    "bool": TritonElement("int1", "bool", 1),
}


def element_of(kind: Attribute) -> TritonElement:
    """The element type of an MLIR type; an `index` is a 64-bit integer. Raises CompileError for types without one."""
    if isinstance(kind, IndexType):
        return _ELEMENTS["int64"]
    element = _ELEMENTS.get(DTYPE_NAMES.get(kind, ""))
    if element is None:
        raise CompileError(f"the Triton backend has no element type for {kind}")
    return element
