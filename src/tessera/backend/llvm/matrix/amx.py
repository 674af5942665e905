"""Intel's matrix unit (AMX): instructions on tiles of up to 16 rows by 64 bytes, in eight registers of their own.

LLVM assigns the registers, and configures the unit for their shapes at the beginning of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.values import BF16, F32, I8, I32, Element, MatrixTile, split_columns
from tessera.backend.llvm.memory.addressing import advance
from tessera.errors import CompileError

TILE = "x86_amx"
"""LLVM's type of a register."""
_ROWS = 16
_ROW_BYTES = 64
_PRODUCTS = {
    (BF16, F32, False): "tdpbf16ps",
    (I8, I32, False): "tdpbssd",
    (I8, I32, True): "tdpbusd",
}
"""Element of the operands, of the sums, whether bytes of the first operand have no sign -> instruction."""


def register_shapes(rows: int, row_bytes: int) -> list[list[tuple[int, int]]]:
    """The rows and the bytes of a row of each register of a tile: rows of registers."""
    heights, widths = split_columns(rows, _ROWS), split_columns(row_bytes, _ROW_BYTES)
    return [[(height, width) for width in widths] for height in heights]


def zeros(emitter: FunctionEmitter, element: Element, rows: int, row_bytes: int) -> MatrixTile:
    """A tile of zeros."""
    signature = (("i16", "i16"), TILE, "@llvm.x86.tilezero.internal")
    registers = [
        tuple([_call(emitter, *signature, height, width) for height, width in row])
        for row in register_shapes(rows, row_bytes)
    ]
    return MatrixTile(element, rows, row_bytes, tuple(registers))


def load(
    emitter: FunctionEmitter, element: Element, rows: int, row_bytes: int, pointer: str, stride: int | str
) -> MatrixTile:
    """The tile whose first row lies at a pointer, and each of the others `stride` bytes further."""
    signature = (("i16", "i16", "ptr", "i64"), TILE, "@llvm.x86.tileloadd64.internal")
    registers = [
        tuple([_call(emitter, *signature, *shape, place, stride) for shape, place in row])
        for row in _places(emitter, rows, row_bytes, pointer, stride)
    ]
    return MatrixTile(element, rows, row_bytes, tuple(registers))


def store(emitter: FunctionEmitter, value: MatrixTile, pointer: str, stride: int | str) -> None:
    """Writes a tile to where `load` would read it."""
    emitter.declare(f"void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, {TILE})")
    places = _places(emitter, value.rows, value.row_bytes, pointer, stride)
    for registers, row in zip(value.registers, places, strict=True):
        for register, ((height, width), place) in zip(registers, row, strict=True):
            arguments = f"i16 {height}, i16 {width}, ptr {place}, i64 {stride}, {TILE} {register}"
            emitter.effect(f"call void @llvm.x86.tilestored64.internal({arguments})")


def multiply_add(
    emitter: FunctionEmitter, a: MatrixTile, b: MatrixTile, acc: MatrixTile, unsigned_a: bool
) -> MatrixTile:
    """`acc + a @ b`, where four bytes of a column of b lie side by side. Raises CompileError for other dtypes."""
    instruction = _PRODUCTS.get((a.element, acc.element, unsigned_a))
    if instruction is None or b.element is not a.element:
        kinds = f"{a.element.name} by {b.element.name}, summed in {acc.element.name}"
        raise CompileError(f"the matrix unit has no products of {kinds}")
    signature = (("i16", "i16", "i16", TILE, TILE, TILE), TILE, f"@llvm.x86.{instruction}.internal")
    left = register_shapes(a.rows, a.row_bytes)
    sums = [list(row) for row in acc.registers]
    for i, row in enumerate(register_shapes(acc.rows, acc.row_bytes)):
        for j, (height, width) in enumerate(row):
            for k, (_, depth) in enumerate(left[i]):
                shape = height, width, depth
                sums[i][j] = _call(emitter, *signature, *shape, sums[i][j], a.registers[i][k], b.registers[k][j])
    return MatrixTile(acc.element, acc.rows, acc.row_bytes, tuple([tuple(row) for row in sums]))


def _call(emitter: FunctionEmitter, kinds: Sequence[str], result: str, function: str, *operands: int | str) -> str:
    pairs = [(kind, str(operand)) for kind, operand in zip(kinds, operands, strict=True)]
    return emitter.emit(emitter.call(result, function, *pairs))


def _places(
    emitter: FunctionEmitter, rows: int, row_bytes: int, pointer: str, stride: int | str
) -> list[list[tuple[tuple[int, int], str]]]:
    """The shape of each register of a tile in memory, and its address."""
    places = []
    for number, row in enumerate(register_shapes(rows, row_bytes)):
        if number:
            step = stride * _ROWS if isinstance(stride, int) else emitter.pure(f"shl i64 {stride}, 4")
            pointer = advance(emitter, pointer, step)
        places.append([(shape, advance(emitter, pointer, _ROW_BYTES * at)) for at, shape in enumerate(row)])
    return places
