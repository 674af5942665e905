"""The binary format of CUDA Tile IR ("Tile IR", 4. Binary Format), which its compiler takes.

It is written here and not by NVIDIA's Python package: the format is public and stable, programs of it are compiled by
every later compiler, and one file of the package's 25 does what a printed kernel needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import singledispatchmethod
from typing import Any, Final

from tessera.backend.cuda_tile.program.operations import CODES, VERSION
from tessera.backend.cuda_tile.program.program import (
    Hints,
    Operand,
    TileBlock,
    TileOperation,
    TileProgram,
    TileValue,
)
from tessera.backend.cuda_tile.program.types import (
    ELEMENTS,
    I1,
    I32,
    TF32,
    ElementType,
    PartitionView,
    Pointer,
    TensorView,
    TileType,
    Token,
)

_MAGIC: Final = b"\x7fTileIR\x00"
_STRINGS, _FUNCTIONS, _DEBUG, _CONSTANTS, _TYPES = 1, 2, 3, 4, 5
_POINTER, _TILE, _TENSOR, _PARTITION, _FUNCTION, _TOKEN = 12, 13, 14, 15, 16, 17
_INTEGER, _FLOAT, _BOOL, _DIVISIBLE, _DICTIONARY, _HINTS, _BOUNDED = 1, 2, 3, 8, 10, 11, 12
_DYNAMIC: Final = -(2**63)
_ENTRY, _HINTED = 2, 4
_PADDING: Final = {"zero": 0, "pos_inf": 3, "neg_inf": 4}
_FILLER: Final = b"\xcb"


def encode(program: TileProgram) -> bytes:
    """A module with the program's entry."""
    return _Writer().module(program)


def varint(number: int) -> bytes:
    """A natural number, seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _signed(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else ~(number << 1))


def _integers(numbers: Sequence[int], width: int) -> bytes:
    return varint(len(numbers)) + b"".join(number.to_bytes(width, "little", signed=True) for number in numbers)


class _Table:
    """Things that are written once and named by numbers, from `first` on."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._numbers: dict[Hashable, int] = {}
        self._written: list[bytes] = []

    def number(self, thing: Hashable, write: Callable[[], bytes]) -> int:
        """The number of a thing, which `write` writes when it is new."""
        if thing not in self._numbers:
            written = write()  # which may enter other things first
            self._numbers[thing] = self._first + len(self._written)
            self._written.append(written)
        return self._numbers[thing]

    def contents(self, width: int) -> bytes:
        """How many there are, where each begins (in `width` bytes), and all of them."""
        found = bytearray(varint(len(self._written)))
        _pad(found, width)
        at = 0
        for each in self._written:
            found += at.to_bytes(width, "little")
            at += len(each)
        return bytes(found) + b"".join(self._written)


def _pad(buffer: bytearray, alignment: int) -> None:
    buffer += _FILLER * (-len(buffer) % alignment)


class _Writer:
    """Tables, and the entry's code."""

    def __init__(self) -> None:
        self._strings, self._types, self._constants = _Table(), _Table(), _Table()
        self._values: dict[TileValue, int] = {}
        self._next = 0
        self._operations = 0
        for known in (I1, I32):  # readers know these two by their numbers
            self._type(known)

    def module(self, program: TileProgram) -> bytes:
        """The whole file."""
        functions = varint(1) + self._entry(program)
        strings, debug = self._strings, self._debug()
        found = bytearray(_MAGIC + bytes(VERSION) + b"\0\0")
        for number, alignment, contents in (
            (_FUNCTIONS, 8, functions),
            (_CONSTANTS, 8, self._constants.contents(8)),
            (_DEBUG, 8, debug),
            (_TYPES, 4, self._types.contents(4)),
            (_STRINGS, 4, strings.contents(4)),
        ):
            found += bytes([number | 0x80]) + varint(len(contents)) + varint(alignment)
            _pad(found, alignment)
            found += contents
        return bytes(found) + b"\0"

    def _debug(self) -> bytes:
        """That nothing is said of where operations come from: number 0 for the entry and each of its operations."""
        count = self._operations + 1
        found = bytearray(varint(1))
        _pad(found, 4)
        found += bytes(4) + varint(count)
        _pad(found, 8)
        found += bytes(8 * count)
        empty = _Table(1)
        empty.number("", lambda: b"\0")
        return bytes(found) + empty.contents(4)

    def _string(self, text: str) -> bytes:
        return varint(self._strings.number(text, text.encode))

    def _entry(self, program: TileProgram) -> bytes:
        types = [argument.type for argument in program.body.arguments]
        found = self._string(program.name)
        found += varint(self._types.number(("function", *types), lambda: self._function(types)))
        found += bytes([_ENTRY | (_HINTED if program.hints else 0)])
        found += varint(1)  # which of the functions of the section for debugging
        if program.hints:
            found += self._hints(program.hints)
        for argument in program.body.arguments:
            self._define(argument)
        code = b"".join(map(self._operation, program.body.operations))
        return found + varint(len(code)) + code

    def _function(self, types: Iterable[Any]) -> bytes:
        numbers = [self._type(each) for each in types]
        return bytes([_FUNCTION]) + varint(len(numbers)) + b"".join(numbers) + varint(0)

    def _hints(self, hints: Hints) -> bytes:
        said = {"num_cta_in_cga": hints.ctas, "occupancy": hints.occupancy}
        items = [(name, number) for name, number in said.items() if number is not None]
        found = bytes([_HINTS]) + varint(1) + self._string(hints.arch) + bytes([_DICTIONARY]) + varint(len(items))
        return found + b"".join(self._string(name) + self._integer(number) for name, number in items)

    def _integer(self, value: int, element: ElementType = I32) -> bytes:
        return bytes([_INTEGER]) + self._type(element) + varint(value & (1 << element.bits) - 1)

    # -- types --------------------------------------------------------------------------------------------------------

    def _type(self, kind: Any) -> bytes:
        return varint(self._types.number(kind, lambda: self._written(kind)))

    @singledispatchmethod
    def _written(self, kind: object) -> bytes:
        raise AssertionError(kind)

    @_written.register
    def _(self, kind: ElementType) -> bytes:
        return bytes([_ELEMENT_NUMBERS[kind]])

    @_written.register
    def _(self, kind: Token) -> bytes:
        return bytes([_TOKEN])

    @_written.register
    def _(self, kind: Pointer) -> bytes:
        return bytes([_POINTER]) + self._type(kind.element)

    @_written.register
    def _(self, kind: TileType) -> bytes:
        return bytes([_TILE]) + self._type(kind.element) + _integers(kind.shape, 8)

    @_written.register
    def _(self, kind: TensorView) -> bytes:
        sizes = [[_DYNAMIC if each is None else each for each in of] for of in (kind.shape, kind.strides)]
        return bytes([_TENSOR]) + self._type(kind.element) + _integers(sizes[0], 8) + _integers(sizes[1], 8)

    @_written.register
    def _(self, kind: PartitionView) -> bytes:
        found = bytes([_PARTITION, int(bool(kind.padding))]) + _integers(kind.tile, 4) + self._type(kind.tensor)
        found += _integers(range(len(kind.tile)), 4)
        return found + (bytes([_PADDING[kind.padding]]) if kind.padding else b"")

    # -- operations ---------------------------------------------------------------------------------------------------

    def _define(self, value: TileValue) -> None:
        self._values[value] = self._next
        self._next += 1

    def _operation(self, operation: TileOperation) -> bytes:
        code = CODES[operation.name]
        self._operations += 1
        found = varint(code.number)
        if code.sized:
            found += varint(len(operation.results))
        found += b"".join(self._type(result.type) for result in operation.results)
        if code.flagged:
            found += varint(operation.flags)
        found += b"".join(self._attribute(operation.attributes[name], kind) for name, kind in code.attributes)
        found += b"".join(map(self._operand, operation.operands))
        if operation.blocks:
            found += varint(len(operation.blocks)) + b"".join(map(self._block, operation.blocks))
        for result in operation.results:
            self._define(result)
        return found

    def _operand(self, operand: Operand) -> bytes:
        if operand is None:
            return b""
        if isinstance(operand, TileValue):
            return varint(self._values[operand])
        return varint(len(operand)) + b"".join(varint(self._values[each]) for each in operand)

    def _block(self, block: TileBlock) -> bytes:
        before = self._next
        for argument in block.arguments:
            self._define(argument)
        found = varint(1) + varint(len(block.arguments))
        found += b"".join(self._type(argument.type) for argument in block.arguments)
        found += varint(len(block.operations)) + b"".join(map(self._operation, block.operations))
        self._next = before
        return found

    def _attribute(self, value: Any, kind: str) -> bytes:
        if kind == "byte":
            return bytes([value])
        if kind == "count":
            return varint(value)
        if kind == "ints":
            return _integers(value, 4)
        if kind == "data":
            return varint(self._constants.number(value, lambda: varint(len(value)) + value))
        if kind == "predicate":
            return self._predicate(*value)
        return varint(len(value)) + b"".join(self._identity(number, element) for number, element in value)

    def _predicate(self, name: str, number: int) -> bytes:
        if name == "div_by":
            return bytes([_DIVISIBLE]) + varint(number) + b"\0"
        return bytes([_BOUNDED, 3]) + _signed(0) + _signed(number)

    def _identity(self, number: float, element: ElementType) -> bytes:
        if element == I1:
            return bytes([_BOOL, int(number)])
        if not element.is_float:
            return self._integer(int(number), element)
        bits = int.from_bytes(number_bytes(number, element), "little")
        return bytes([_FLOAT]) + self._type(element) + _signed(bits)


_ELEMENT_NUMBERS: Final = {element: number for number, element in enumerate(ELEMENTS)}


def number_bytes(number: float, element: ElementType) -> bytes:
    """A number as memory holds one of the type."""
    if not element.is_float:
        return int(number).to_bytes(max(element.bits // 8, 1), "little", signed=element.bits > 1)
    if element == TF32:
        raise AssertionError("numbers of tf32 are converted, not written")
    if element.name in _FORMATS:
        return struct.pack(_FORMATS[element.name], number)
    import torch

    kind = {"bf16": torch.bfloat16, "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}[element.name]
    return bytes(torch.tensor([number], dtype=torch.float64, device="cpu").to(kind).view(torch.uint8).tolist())


_FORMATS: Final = {"f16": "<e", "f32": "<f", "f64": "<d"}
