"""The matrix operation: outer products in registers, one step of k after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Operation

from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.values import BF16, F32, I8, I32, PairTile, Tile, Value, vector_type
from tessera.backend.llvm.matrix import tiles as matrix_tiles
from tessera.backend.llvm.matrix.pairs import pair_tiles
from tessera.backend.llvm.tiles.conversion import convert, each_part
from tessera.ir.tile import operations as tile

_PAIR_LANES = 16


def _mma(generator: Generator, op: tile.MmaOp) -> Sequence[Value]:
    if op.matrix_unit is not None:
        return (matrix_tiles.multiply(generator, op),)
    acc = generator.tile(op.acc)
    b = generator.value(op.b)
    assert isinstance(b, (Tile, PairTile))
    if op.unsigned_a is not None:
        return (_unsigned_products(generator, generator.tile(op.a), b, acc),)
    if _multiplies_pairs(generator, generator.tile(op.a), b, acc):
        pairs = [b] if isinstance(b, PairTile) else pair_tiles(generator, b)
        return (_pair_products(generator, generator.tile(op.a), pairs, acc),)
    a = convert(generator, generator.tile(op.a), acc.element)
    return (_outer_products(generator, a, convert(generator, generator.tile(op.b), acc.element), acc),)


def _multiplies_pairs(generator: Generator, a: Tile, b: Tile | PairTile, acc: Tile) -> bool:
    """Whether the CPU has an instruction for it: two bf16 products added to an fp32 sum, denormals taken as zero."""
    return (
        generator.emitter.target.has_avx512bf16
        and a.element is BF16
        and b.element is BF16
        and acc.element is F32
        and a.columns % 2 == 0
        and all(lanes == _PAIR_LANES for lanes in generator.widths(acc.columns))
    )


def _outer_products(generator: Generator, a: Tile, b: Tile, acc: Tile) -> Tile:
    emitter, element = generator.emitter, acc.element
    widths = generator.widths(acc.columns)
    rows = [list(row) for row in acc.rows]
    for k, b_row in enumerate(b.rows):
        for i, sums in enumerate(rows):
            scalar = _lane(generator, a, i, k)
            for v, lanes in enumerate(widths):
                factor = emitter.splat(element.llvm, scalar, lanes)
                sums[v] = _multiply_add(generator, acc, factor, b_row[v], sums[v], lanes)
    return Tile(element, acc.columns, tuple(tuple(row) for row in rows))


def _lane(generator: Generator, a: Tile, row: int, column: int) -> str:
    """One element of a tile as a scalar."""
    part, lane = divmod(column, generator.emitter.lanes)
    width = generator.widths(a.columns)[part]
    operand = a.rows[row][part]
    if width == 1:
        return operand
    return generator.emitter.emit(f"extractelement {vector_type(a.element.llvm, width)} {operand}, i64 {lane}")


def _multiply_add(generator: Generator, acc: Tile, a: str, b: str, c: str, lanes: int) -> str:
    emitter, element = generator.emitter, acc.element
    kind = vector_type(element.llvm, lanes)
    if element.kind == "float":
        suffix = element.name if lanes == 1 else f"v{lanes}{element.name}"
        return emitter.emit(emitter.call(kind, f"@llvm.fma.{suffix}", (kind, a), (kind, b), (kind, c)))
    return emitter.emit(f"add {kind} {emitter.emit(f'mul {kind} {a}, {b}')}, {c}")


def _pair_products(generator: Generator, a: Tile, b: Sequence[PairTile], acc: Tile) -> Tile:
    emitter = generator.emitter
    sums, pairs = f"<{_PAIR_LANES} x float>", f"<{2 * _PAIR_LANES} x bfloat>"
    rows = [list(row) for row in acc.rows]
    for k, b_pair in enumerate(b):
        right = [emitter.emit(f"bitcast <{2 * _PAIR_LANES} x i16> {part} to {pairs}") for part in b_pair.parts]
        for i, row in enumerate(rows):
            spread = emitter.splat("i32", _pair(generator, a, i, 2 * k), _PAIR_LANES)
            left = emitter.emit(f"bitcast <{_PAIR_LANES} x i32> {spread} to {pairs}")
            for v, part in enumerate(right):
                function = "@llvm.x86.avx512bf16.dpbf16ps.512"
                row[v] = emitter.emit(emitter.call(sums, function, (sums, row[v]), (pairs, left), (pairs, part)))
    return Tile(F32, acc.columns, tuple(tuple(row) for row in rows))


def _unsigned_products(generator: Generator, a: Tile, b: Tile | PairTile, acc: Tile) -> Tile:
    """Unsigned bytes by signed ones: by `vpdpbusd` where it is there, else as any other integers."""
    target = generator.emitter.target
    whole = acc.element is I32 and all(lanes == _PAIR_LANES for lanes in generator.widths(acc.columns))
    if target.has_avx512vnni and whole and isinstance(b, PairTile) and b.element is I8 and a.columns == b.depth:
        return _quad_products(generator, a, b, acc)

    def widen(lanes: int, part: str) -> str:
        kinds = f"{vector_type('i8', lanes)} {part} to {vector_type(acc.element.llvm, lanes)}"
        return generator.emitter.emit(f"zext {kinds}")

    right = generator.separate(b) if isinstance(b, PairTile) else b
    return _outer_products(
        generator, each_part(generator, acc.element, [a], widen), convert(generator, right, acc.element), acc
    )


def _quad_products(generator: Generator, a: Tile, b: PairTile, acc: Tile) -> Tile:
    emitter = generator.emitter
    sums = f"<{_PAIR_LANES} x i32>"
    rows = [list(row) for row in acc.rows]
    right = [emitter.emit(f"bitcast <{4 * _PAIR_LANES} x i8> {part} to {sums}") for part in b.parts]
    for quad, row in zip(a.rows, rows, strict=True):
        left = emitter.splat("i32", emitter.emit(f"bitcast <4 x i8> {quad[0]} to i32"), _PAIR_LANES)
        for v, part in enumerate(right):
            function = "@llvm.x86.avx512.vpdpbusd.512"
            row[v] = emitter.emit(emitter.call(sums, function, (sums, row[v]), (sums, left), (sums, part)))
    return Tile(I32, acc.columns, tuple(tuple(row) for row in rows))


def _pair(generator: Generator, a: Tile, row: int, column: int) -> str:
    """Two neighbouring elements of a row as an i32."""
    part, lane = divmod(column, generator.emitter.lanes)
    width = generator.widths(a.columns)[part]
    operand = a.rows[row][part]
    if width != 2:
        operand = generator.emitter.shuffle("i16", width, operand, "poison", (lane, lane + 1))
    return generator.emitter.emit(f"bitcast <2 x i16> {operand} to i32")


MATRIX = cast("dict[type[Operation], Handler]", {tile.MmaOp: _mma})
"""The handler of each operation class."""
