"""Register tiles along an extent that their height does not divide: full ones, and smaller ones for what is left.

Tails of a block are one tile, of the least of a few heights that suffices; tails of a row are one of each of ever
smaller halves. What a tile has too many of is computed, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from xdsl.ir import SSAValue

from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile
from tessera.scheduling.lowering.ranges import ceil_div

Body: TypeAlias = Callable[[AxisTile], None]
"""Writes a tile."""


def block_tails(rows: int) -> tuple[int, ...]:
    """Heights of the smaller register tiles that finish a block whose height `rows` does not divide, largest first."""
    return tuple(height for height in (8, 4, 1) if height <= rows * 3 // 4)[:2]


def over_block(builder: TileBuilder, extent: SSAValue, rows: int, tails: tuple[int, ...], body: Body) -> None:
    """Tiles over a block of so many rows: full ones, then one of the `tails` for what is left."""
    zero = builder.index(0)
    if not tails:
        with builder.loop(zero, extent, rows) as loop:
            body(AxisTile(loop.index, rows, False))
        return
    # A full tile also takes a rest larger than the largest tail; its missing rows are masked.
    full = builder.add(builder.sub(extent, builder.index(tails[0])), builder.index(rows - 1))
    count = builder.floor_div(full, builder.index(rows))
    start = builder.mul(count, builder.index(rows))
    with builder.loop(zero, start, rows) as loop:
        body(AxisTile(loop.index, rows, False))
    rest = builder.sub(extent, start)

    def finish(heights: tuple[int, ...]) -> tuple[SSAValue, ...]:
        head, *others = heights
        floor = others[0] if others else 0

        def then() -> tuple[SSAValue, ...]:
            body(AxisTile(start, head, False))
            return ()

        more = (lambda: finish(tuple(others))) if others else None
        return builder.branch(builder.compare(rest, builder.index(floor), "sgt"), then, more)

    finish(tails)


def row_tails(pixels: int) -> tuple[int, ...]:
    """Heights of the smaller register tiles that finish a row of results, largest first: halves of halves."""
    heights = []
    while pixels > 2:
        pixels = -(-pixels // 2)
        heights.append(pixels)
    return tuple(heights) if heights or pixels < 2 else (1,)


def row_tiles(columns: int, heights: tuple[int, ...]) -> dict[int, int]:
    """How many register tiles of each height make a row of so many results; see `over_row`."""
    counts = {}
    for place, height in enumerate(heights):
        after = sum(heights[place + 1 :])
        counts[height] = max(0, -(-(columns - after) // height)) if place == 0 else int(columns > after)
        columns -= counts[height] * height
    return counts


def over_row(builder: TileBuilder, columns: SSAValue, heights: tuple[int, ...], body: Body) -> None:
    """Tiles along a row: as many of the first height as there is work for, and then at most one of each of the smaller
    ones, which together have at most a pixel or so too many.
    """
    full, *smaller = heights
    zero, height, after = builder.index(0), builder.index(full), sum(smaller)
    rest = builder.maximum(builder.sub(columns, builder.index(after)), zero)
    start = builder.mul(ceil_div(builder, rest, height), height)
    with builder.loop(zero, start, full) as loop:
        body(AxisTile(loop.index, full, after >= full - 1))
    for pixels in smaller:
        after -= pixels
        tile = AxisTile(start, pixels, after >= pixels - 1)

        def then(tile: AxisTile = tile) -> tuple[SSAValue, ...]:
            body(tile)
            return (builder.add(tile.start, builder.index(tile.size)),)

        def otherwise(tile: AxisTile = tile) -> tuple[SSAValue, ...]:
            return (tile.start,)

        more = builder.compare(builder.sub(columns, start), builder.index(after), "sgt")
        (start,) = builder.branch(more, then, otherwise)
