"""Two rows of 16-bit elements, column by column, as the dot product of pairs wants them."""

from __future__ import annotations

from tessera.backend.llvm.generator import Generator
from tessera.backend.llvm.values import PairTile, Tile
from tessera.errors import CompileError


def pair_tiles(generator: Generator, value: Tile) -> list[PairTile]:
    """Each two rows of a tile of 16-bit elements, interleaved."""
    if len(value.rows) % 2 or value.element.size != 2:
        raise CompileError(f"rows of {value.element.name} interleave in pairs of 16-bit elements only")
    widths = generator.widths(value.columns)
    result = []
    for upper, lower in zip(value.rows[::2], value.rows[1::2], strict=True):
        parts = []
        for a, b, lanes in zip(upper, lower, widths, strict=True):
            order = [lane for column in range(lanes) for lane in (column, lanes + column)]
            parts.append(generator.emitter.shuffle(value.element.llvm, lanes, a, b, order))
        result.append(PairTile(value.element, value.columns, tuple(parts)))
    return result
