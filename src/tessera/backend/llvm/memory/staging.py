"""Staging: copying a sub-block, tile by tile, into scratch memory with a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Operation

from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.indices import divide
from tessera.backend.llvm.emission.values import (
    BufferValue,
    IndexValue,
    PairTile,
    Tile,
    TurnedTile,
    Value,
    constant_index,
    shape_of,
)
from tessera.backend.llvm.matrix.pairs import pair_tiles, turned_pairs
from tessera.backend.llvm.memory.access import write
from tessera.backend.llvm.memory.addressing import advance, window
from tessera.backend.llvm.memory.buffers import scratch
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile

STRIP_ROWS = 8
"""Rows that are packed side by side into panels."""


def _stage(generator: Generator, op: tile.StageOp) -> Sequence[Value]:
    layout, kind = op.layout.data, op.staged.type
    last = op.body.block.last_op
    assert last is not None
    shape = shape_of(last.operands[0].type)
    extents = [generator.index(extent) for extent in op.extents]
    padded = [_round_up(generator, extent, size) for extent, size in zip(extents, shape, strict=True)]
    most = [constant_index(-(-m // size) * size) for m, size in zip(tile.integers(op.maximum), shape, strict=True)]
    largest = [cast(int, extent.known) for extent in _layout_extents(generator, layout, kind, most)]
    staged = scratch(generator, kind, largest, _layout_extents(generator, layout, kind, padded))
    put = _LAYOUTS[layout]

    def body(position: list[IndexValue]) -> None:
        generator.define(op.body.block.args, position)
        (value,) = generator.run(op.body.block)
        assert isinstance(value, (Tile, PairTile, TurnedTile))
        put(generator, staged, position, value)

    _traverse(generator, layout, extents, shape, body)
    return (staged,)


def _traverse(
    generator: Generator,
    layout: str,
    extents: Sequence[IndexValue],
    shape: tuple[int, int],
    body: Callable[[list[IndexValue]], None],
) -> None:
    """Runs `body` at the position of each tile, in the order that keeps reading and writing sequential.

    Panels of flat tiles are filled in strips of a few rows: the rows are as many streams as prefetchers follow, a
    strip's part of a panel is whole lines. Filling one panel after another would read one line of each page (Zen 4, a
    product of 32 rows of bf16 with K = N = 4096: 0.59 of oneDNN with packed weights so, 0.89 in strips). Tall tiles are
    transposed and lie along the panel in memory already.
    """
    emitter, zero = generator.emitter, constant_index(0)
    (rows, columns), (height, width) = extents, shape

    def each(start: IndexValue, end: IndexValue, step: int, inner: Callable[[IndexValue], None]) -> None:
        def run(index: IndexValue, _: list[str]) -> list[str]:
            inner(index)
            return []

        emitter.loop(start, end, step, [], run)

    def panels(start: IndexValue, end: IndexValue) -> None:
        each(zero, columns, width, lambda j: each(start, end, height, lambda i: body([i, j])))

    if layout in ("rows", "row_panels"):
        each(zero, rows, height, lambda i: each(zero, columns, width, lambda j: body([i, j])))
    elif height > STRIP_ROWS:
        panels(zero, rows)
    else:
        each(zero, rows, STRIP_ROWS, lambda i: panels(i, emitter.minimum(i.plus(STRIP_ROWS), rows)))


def _round_up(generator: Generator, extent: IndexValue, size: int) -> IndexValue:
    if size == 1:
        return extent
    emitter = generator.emitter
    return emitter.multiply(divide(emitter, extent.plus(size - 1), size), constant_index(size))


def _layout_extents(
    generator: Generator, layout: str, kind: MemRefType[Attribute], extents: Sequence[IndexValue]
) -> list[IndexValue]:
    """The extents of the staged buffer of a sub-block of whole tiles."""
    emitter, (rows, columns) = generator.emitter, extents
    if layout == "rows":
        return [rows, columns]
    width = kind.get_shape()[2]
    if width < 1:
        raise CompileError(f"the panels of {kind} need a static width")
    if layout == "row_panels":
        rows, columns = columns, rows
    panels = divide(emitter, columns.plus(width - 1), width)
    if layout == "panels_vnni":
        return [panels, divide(emitter, rows.plus(1), 2), constant_index(width), constant_index(2)]
    return [panels, rows, constant_index(width)]


Staged: TypeAlias = Tile | PairTile | TurnedTile
_Put = Callable[[Generator, BufferValue, list[IndexValue], Staged], None]


def _as_tile(generator: Generator, value: Staged) -> Tile:
    assert not isinstance(value, TurnedTile), "only panels of pairs take these"
    return generator.separate(value) if isinstance(value, PairTile) else value


def _put_rows(generator: Generator, staged: BufferValue, position: list[IndexValue], value: Staged) -> None:
    rows = _as_tile(generator, value)
    at = window(generator.emitter, staged, position, (0, 1), (1, 1), (len(rows.rows), rows.columns))
    write(generator, at, rows)


def _pieces(generator: Generator, staged: BufferValue, columns: int) -> list[tuple[int, int, int]]:
    """(columns before, first part, parts) of each panel's share of a tile's row."""
    width, lanes = cast(int, staged.extents[2].known), generator.emitter.lanes
    if width % columns == 0:
        return [(0, 0, len(generator.widths(columns)))]
    if columns % width or width % lanes:
        raise CompileError(f"a tile of {columns} columns does not fit panels of {width} columns of whole vectors")
    return [(first, first // lanes, width // lanes) for first in range(0, columns, width)]


def _panel(generator: Generator, staged: BufferValue, column: IndexValue) -> tuple[IndexValue, IndexValue]:
    """(panel, column in it)"""
    emitter, width = generator.emitter, cast(int, staged.extents[2].known)
    panel = divide(emitter, column, width)
    return panel, emitter.subtract(column, emitter.multiply(panel, constant_index(width)))


def _put_panels(generator: Generator, staged: BufferValue, position: list[IndexValue], value: Staged) -> None:
    rows, (i, j) = _as_tile(generator, value), position
    width = cast(int, staged.extents[2].known)
    for first, part, count in _pieces(generator, staged, rows.columns):
        panel, column = _panel(generator, staged, j.plus(first))
        if rows.columns >= width:
            column = constant_index(0)
        piece = Tile(rows.element, min(width, rows.columns), tuple(row[part : part + count] for row in rows.rows))
        at = window(generator.emitter, staged, [panel, i, column], (1, 2), (1, 1), (len(rows.rows), piece.columns))
        write(generator, at, piece)


def _put_row_panels(generator: Generator, staged: BufferValue, position: list[IndexValue], value: Staged) -> None:
    rows, (i, j) = _as_tile(generator, value), position
    height, width = len(rows.rows), cast(int, staged.extents[2].known)
    if width % height:
        raise CompileError(f"a tile of {height} rows does not fit panels of {width} rows")
    panel, row = _panel(generator, staged, i)
    if height == width:
        row = constant_index(0)
    at = window(generator.emitter, staged, [panel, j, row], (2, 1), (1, 1), (height, rows.columns))
    write(generator, at, rows)


def _put_pairs(generator: Generator, staged: BufferValue, position: list[IndexValue], value: Staged) -> None:
    emitter, (i, j) = generator.emitter, position
    if isinstance(value, TurnedTile):
        tiles = turned_pairs(generator, value)
    else:
        tiles = [value] if isinstance(value, PairTile) else pair_tiles(generator, value)
    total = tiles[0].columns
    widths = generator.widths(total)
    width = cast(int, staged.extents[2].known)
    for number, pairs in enumerate(tiles):
        row = divide(emitter, i, 2).plus(number)
        for first, part, count in _pieces(generator, staged, total):
            panel, column = _panel(generator, staged, j.plus(first))
            if total >= width:
                column = constant_index(0)
            at = window(emitter, staged, [panel, row, column, constant_index(0)], (), (), (1, 1))
            (pointer,) = at.row_pointers(emitter)
            offset = 0
            for operand, lanes in zip(pairs.parts[part : part + count], widths[part : part + count], strict=True):
                target = advance(emitter, pointer, offset)
                emitter.effect(f"store <{2 * lanes} x i16> {operand}, ptr {target}, align 2")
                offset += 4 * lanes


_LAYOUTS: dict[str, _Put] = {
    "rows": _put_rows,
    "panels": _put_panels,
    "row_panels": _put_row_panels,
    "panels_vnni": _put_pairs,
}

STAGING = cast("dict[type[Operation], Handler]", {tile.StageOp: _stage})
"""The handler of each operation class."""
