"""Two rows of 16-bit elements, or four of 8-bit ones, column by column, as dot products want them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backend.llvm.generator import Generator
from tessera.backend.llvm.values import GROUP_BYTES, PairTile, Tile
from tessera.errors import CompileError


def pair_tiles(generator: Generator, value: Tile) -> list[PairTile]:
    """Each two rows of a tile of 16-bit elements, and each four of one of 8-bit elements, interleaved."""
    depth = GROUP_BYTES // value.element.size
    if depth not in (2, 4) or len(value.rows) % depth:
        raise CompileError(f"{len(value.rows)} rows of {value.element.name} do not interleave in groups of 4 bytes")
    rows = [value.rows[first : first + depth] for first in range(0, len(value.rows), depth)]
    return [PairTile(value.element, value.columns, _interleaved(generator, value, group)) for group in rows]


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
