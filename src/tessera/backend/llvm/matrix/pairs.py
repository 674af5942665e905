"""Two rows of 16-bit elements, or four of 8-bit ones, column by column, as dot products want them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import GROUP_BYTES, I32, PairTile, Tile, TurnedTile, vector_type
from tessera.backend.llvm.tiles.transposition import transpose
from tessera.errors import CompileError


def pair_tiles(generator: Generator, value: Tile) -> list[PairTile]:
    """Each two rows of a tile of 16-bit elements, and each four of one of 8-bit elements, interleaved."""
    depth = GROUP_BYTES // value.element.size
    if depth not in (2, 4) or len(value.rows) % depth:
        raise CompileError(f"{len(value.rows)} rows of {value.element.name} do not interleave in groups of 4 bytes")
    rows = [value.rows[first : first + depth] for first in range(0, len(value.rows), depth)]
    return [PairTile(value.element, value.columns, _interleaved(generator, value, group)) for group in rows]


def turned_pairs(generator: Generator, value: TurnedTile) -> list[PairTile]:
    """The same of a tile whose columns lie in rows, of a power of two of 16-bit elements: pairs, which are neighbours
    there, move as one element.
    """
    emitter, source = generator.emitter, value.source
    kind, count = source.element.llvm, source.columns // 2
    rows = []
    for row in source.rows:
        parts, lanes = row, generator.widths(source.columns)[0]
        if len(parts) > 1:  # as many as a register holds
            halves = zip(parts[::2], parts[1::2], strict=True)
            parts, lanes = tuple([emitter.shuffle(kind, lanes, *both, range(2 * lanes)) for both in halves]), 2 * lanes
        rows.append(tuple([_recast(generator, part, kind, lanes, "i32", lanes // 2) for part in parts]))
    turned = transpose(generator, Tile(I32, count, tuple(rows)))
    widths = generator.widths(turned.columns)
    result = []
    for row in turned.rows:
        whole = zip(row, widths, strict=True)
        pairs = tuple([_recast(generator, part, "i32", lanes, kind, 2 * lanes) for part, lanes in whole])
        result.append(PairTile(source.element, turned.columns, pairs))
    return result


def _recast(generator: Generator, operand: str, kind: str, lanes: int, other: str, count: int) -> str:
    """The same bits as a vector of another type."""
    return generator.emitter.pure(f"bitcast {vector_type(kind, lanes)} {operand} to {vector_type(other, count)}")


def _interleaved(generator: Generator, value: Tile, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Rows of a tile column by column: pairs of neighbours first, then pairs of these."""
    widths, width = generator.widths(value.columns), 1
    while len(rows) > 1:
        joined = []
        for upper, lower in zip(rows[::2], rows[1::2], strict=True):
            parts = []
            for a, b, lanes in zip(upper, lower, widths, strict=True):
                own, other = ([first + width * column for column in range(lanes)] for first in (0, lanes * width))
                order = [at + step for pair in zip(own, other, strict=True) for at in pair for step in range(width)]
                parts.append(generator.emitter.shuffle(value.element.llvm, lanes * width, a, b, order))
            joined.append(tuple(parts))
        rows, width = joined, 2 * width
    return rows[0]
