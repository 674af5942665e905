"""Exchanging rows and columns of a tile in registers.

Square blocks of a power of two are transposed in log2 steps, each of which exchanges halves of ever smaller squares
between two rows (Eklundh, "A Fast Computer Method for Matrix Transposing", 1972).
"""

from __future__ import annotations

from math import gcd

from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import Tile


def transpose(generator: Generator, value: Tile) -> Tile:
    """The tile with rows and columns exchanged."""
    rows, columns = len(value.rows), value.columns
    side = min(generator.emitter.lanes, _power_of_two(rows), _power_of_two(columns))
    # Blocks of the result, row of blocks after row of blocks: block (j, i) of the result is block (i, j) of the tile.
    turned = [[_turn(generator, value, side, i, j) for i in range(rows // side)] for j in range(columns // side)]
    result = []
    for blocks in turned:
        for line in range(side):
            result.append(_join(generator, value, [block[line] for block in blocks], side))
    return Tile(value.element, rows, tuple(result))


def _power_of_two(number: int) -> int:
    """The largest power of two that divides it."""
    return gcd(number, 1 << number.bit_length())


def _turn(generator: Generator, value: Tile, side: int, i: int, j: int) -> list[str]:
    """Block (i, j) of the tile, transposed: `side` operands of `side` lanes."""
    emitter, kind, lanes = generator.emitter, value.element.llvm, generator.emitter.lanes
    part, first = divmod(j * side, lanes)
    width = generator.widths(value.columns)[part]
    lines = [value.rows[i * side + line][part] for line in range(side)]
    if width != side:
        lines = [emitter.shuffle(kind, width, line, "poison", range(first, first + side)) for line in lines]
    half = 1
    while half < side:
        low = [lane if not lane & half else side + (lane ^ half) for lane in range(side)]
        high = [lane | half if not lane & half else side + lane for lane in range(side)]
        for line in range(side):
            if line & half:
                continue
            a, b = lines[line], lines[line | half]
            lines[line] = emitter.shuffle(kind, side, a, b, low)
            lines[line | half] = emitter.shuffle(kind, side, a, b, high)
        half *= 2
    return lines


def _join(generator: Generator, value: Tile, pieces: list[str], side: int) -> tuple[str, ...]:
    """Pieces of `side` lanes one after another, cut into the parts of a row."""
    emitter, kind = generator.emitter, value.element.llvm
    parts, position = [], 0
    for lanes in generator.widths(side * len(pieces)):
        operands = pieces[position : position + lanes // side]
        position += lanes // side
        width = side
        while len(operands) > 1:
            if len(operands) & (len(operands) - 1):
                operands = [_grow(generator, kind, operands, side)]
                break
            operands = [
                emitter.shuffle(kind, width, a, b, range(2 * width))
                for a, b in zip(operands[::2], operands[1::2], strict=True)
            ]
            width *= 2
        parts.append(operands[0])
    return tuple(parts)


def _grow(generator: Generator, kind: str, operands: list[str], side: int) -> str:
    """Operands of `side` lanes one after another where their number is no power of two."""
    emitter = generator.emitter
    total, width = operands[0], side
    for operand in operands[1:]:
        wide = (
            emitter.shuffle(kind, side, operand, "poison", [*range(side), *[0] * (width - side)])
            if width > side
            else operand
        )
        total = emitter.shuffle(kind, width, total, wide, [*range(width), *range(width, width + side)])
        width += side
    return total
