"""What the generator holds for each SSA value of Tile IR: an index, a tile or a buffer, in terms of LLVM operands.

An *operand* is text that may stand as an operand in LLVM IR: a name (`%v7`), a literal or a constant expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    Signedness,
    VectorType,
)
from xdsl.ir import Attribute

from tessera.errors import CompileError


@dataclass(frozen=True, slots=True)
class Element:
    """An element type: its MLIR name, the LLVM types of values and of memory, its size in bytes; of integers, whether
    they have a sign.

    Floats of 16 and 8 bits are held as their bit patterns, because LLVM handles vectors of i16 and i8 well on every
    CPU; arithmetic on them goes through fp32. i1 takes a byte in memory.
    """

    name: str
    llvm: str
    memory: str
    size: int
    kind: Literal["float", "int", "bool"]
    signed: bool = True


F32 = Element("f32", "float", "float", 4, "float")
F64 = Element("f64", "double", "double", 8, "float")
F16 = Element("f16", "i16", "i16", 2, "float")
BF16 = Element("bf16", "i16", "i16", 2, "float")
E4M3 = Element("f8E4M3FN", "i8", "i8", 1, "float")
E5M2 = Element("f8E5M2", "i8", "i8", 1, "float")
I1 = Element("i1", "i1", "i8", 1, "bool")
U8 = Element("ui8", "i8", "i8", 1, "int", signed=False)
I8 = Element("i8", "i8", "i8", 1, "int")
I16 = Element("i16", "i16", "i16", 2, "int")
I32 = Element("i32", "i32", "i32", 4, "int")
I64 = Element("i64", "i64", "i64", 8, "int")
_INTEGERS = {IntegerType(each.size * 8 if each.kind == "int" else 1): each for each in (I1, I8, I16, I32, I64)}
_INTEGERS[IntegerType(8, Signedness.UNSIGNED)] = U8
_FLOATS: dict[type[Attribute], Element] = {
    Float32Type: F32,
    Float64Type: F64,
    Float16Type: F16,
    BFloat16Type: BF16,
    Float8E4M3FNType: E4M3,
    Float8E5M2Type: E5M2,
}
GROUP_BYTES = 4
"""Bytes of neighbouring rows that a dot product adds to one sum."""
NARROW = frozenset((F16, BF16, E4M3, E5M2))
"""The floats that are held as bit patterns."""


def element_of(attribute: Attribute) -> Element:
    """The element of a scalar, vector or memref type. Raises CompileError for types without code."""
    if isinstance(attribute, (VectorType, MemRefType)):
        return element_of(attribute.element_type)
    if isinstance(attribute, IndexType):
        return I64
    if isinstance(attribute, IntegerType) and attribute in _INTEGERS:
        return _INTEGERS[attribute]
    element = _FLOATS.get(type(attribute))
    if element is None:
        raise CompileError(f"the LLVM backend has no code for elements of type {attribute}")
    return element


def vector_type(scalar: str, lanes: int) -> str:
    """The LLVM type of `lanes` scalars; one lane is the scalar itself."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def shape_of(attribute: Attribute) -> tuple[int, int]:
    """(rows, columns) of a tile; a scalar has one of each, a vector of rank 1 one row."""
    if not isinstance(attribute, VectorType):
        return 1, 1
    shape = attribute.get_shape()
    if len(shape) > 2:
        raise CompileError(f"the LLVM backend has no tiles of rank {len(shape)}: {attribute}")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The value `base + offset`; the base is a name, None where the value is known. `natural` promises that it is >= 0.

    Keeping the known part apart puts it into the displacement of an address.
    """

    base: str | None
    offset: int = 0
    natural: bool = False

    @property
    def known(self) -> int | None:
        """The value, where the generator knows it."""
        return self.offset if self.base is None else None

    def plus(self, amount: int) -> IndexValue:
        """The value that much further."""
        return IndexValue(
            self.base, self.offset + amount, (self.natural or self.base is None) and self.offset + amount >= 0
        )


def constant_index(value: int) -> IndexValue:
    """A known index."""
    return IndexValue(None, value, value >= 0)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile in registers: for each row its columns, cut into vectors of a register's lanes, the last one narrower.

    A part of one lane is a scalar, so a tile of one column is one scalar per row. Rows that hold the same operands are
    computed once.
    """

    element: Element
    columns: int
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class PairTile:
    """A tile of two rows of 16-bit elements, or four of 8-bit ones, whose columns are interleaved, as dot products want
    them.

    Each part holds, lane after lane, the rows of up to a register's lanes of columns.
    """

    element: Element
    columns: int
    parts: tuple[str, ...]

    @property
    def depth(self) -> int:
        """The number of rows."""
        return GROUP_BYTES // self.element.size


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """A tile in registers of a matrix unit, as rows of registers. Its bytes stand as they would in memory, so that a
    tile whose columns are interleaved has wider rows, and fewer.
    """

    element: Element
    rows: int
    row_bytes: int
    registers: tuple[tuple[str, ...], ...]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.row_bytes // self.element.size


@dataclass(frozen=True, slots=True)
class BufferValue:
    """A buffer: its address, extents and strides. A stride, in bytes, is an integer where it is known, else a name."""

    pointer: str
    element: Element
    extents: tuple[IndexValue, ...]
    strides: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A row of vectors that is to be stored past the caches."""

    element: Element
    pointer: str
    parts: Sequence[str]
    widths: Sequence[int]


@dataclass(frozen=True, slots=True)
class TurnedTile:
    """A tile that is still to be transposed: `source` has its columns as rows."""

    source: Tile


Value: TypeAlias = IndexValue | Tile | PairTile | TurnedTile | MatrixTile | BufferValue


def split_columns(columns: int, lanes: int) -> tuple[int, ...]:
    """The widths of the parts that hold a row of `columns`."""
    whole, rest = divmod(columns, lanes)
    return (lanes,) * whole + ((rest,) if rest else ())
