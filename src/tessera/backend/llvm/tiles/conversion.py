"""Conversions between element types, as torch's `to` makes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Final

from tessera.backend.llvm.emission.emitter import zero
from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    I32,
    NARROW,
    Element,
    Tile,
    vector_type,
)
from tessera.backend.llvm.tiles import float8

_ROUNDED_LANES: Final = 16
_DENORMAL: Final = "32"  # of `vfpclassps`: of either sign

TOGETHER: Final = 4
"""Parts whose instructions are written in turn: with more, what they need beside constants would not fit registers."""


def each_part(generator: Generator, element: Element, tiles: list[Tile], make: Callable[..., str]) -> Tile:
    """A tile of `element` whose parts are `make(lanes, operand...)` of the tiles' parts.

    Rows that hold the same operands, as in a tile spread over rows, are made once.
    """
    widths = generator.widths(tiles[0].columns)
    rows = [
        [(lanes, *operands) for lanes, operands in zip(widths, zip(*row, strict=True), strict=True)]
        for row in zip(*(tile.rows for tile in tiles), strict=True)
    ]
    distinct = list(dict.fromkeys(itertools.chain(*rows)))
    made: dict[tuple[int | str, ...], str] = {}
    for start in range(0, len(distinct), TOGETHER):
        parts = distinct[start : start + TOGETHER]
        made.update(zip(parts, generator.emitter.woven([partial(make, *part) for part in parts]), strict=True))
    return Tile(element, tiles[0].columns, tuple(tuple(made[part] for part in row) for row in rows))


def convert(generator: Generator, value: Tile, element: Element) -> Tile:
    """The tile with its elements converted: floats to integers truncate, anything to i1 tests for non-zero."""
    if value.element is element:
        return value
    if element is BF16 and _rounds_to_bf16(generator, value.columns):
        return _narrow_by_instruction(generator, convert(generator, value, F32))

    def make(lanes: int, part: str) -> str:
        return convert_part(generator, part, lanes, value.element, element)

    return each_part(generator, element, [value], make)


def convert_part(generator: Generator, part: str, lanes: int, source: Element, target: Element) -> str:
    """One part of a tile, or a scalar, converted."""
    emitter = generator.emitter
    if source is target:
        return part
    if target.kind == "bool":
        return _non_zero(generator, part, lanes, source)
    if source in NARROW:
        return convert_part(generator, _widen(generator, part, lanes, source), lanes, F32, target)
    if target in NARROW:
        # As torch does, through fp32, wherever the number comes from.
        single = convert_part(generator, part, lanes, source, F32)
        return _narrow(generator, single, lanes, target)
    kinds = f"{vector_type(source.llvm, lanes)} {part} to {vector_type(target.llvm, lanes)}"
    if source.kind == "float" and target.kind == "float":
        return emitter.emit(f"{'fpext' if source is F32 else 'fptrunc'} {kinds}")
    if source.kind == "float":
        return _truncate_to_integer(generator, part, lanes, source, target)
    unsigned = source.kind == "bool" or not source.signed
    if target.kind == "float":
        return emitter.emit(f"{'uitofp' if unsigned else 'sitofp'} {kinds}")
    if source.kind == "bool" or target.size > source.size:
        return emitter.emit(f"{'zext' if unsigned else 'sext'} {kinds}")
    if target.size == source.size:
        return part
    return emitter.emit(f"trunc {kinds}")


def _truncate_to_integer(generator: Generator, part: str, lanes: int, source: Element, target: Element) -> str:
    """Numbers that do not fit give whatever the CPU gives, hence `freeze`: LLVM would call them poison."""
    emitter = generator.emitter
    wide = target if target.size >= 4 else I32  # of which CPUs convert vectors, as of I64 most do not
    kind = vector_type(wide.llvm, lanes)
    number = emitter.emit(f"fptosi {vector_type(source.llvm, lanes)} {part} to {kind}")
    number = emitter.emit(f"freeze {kind} {number}")
    return convert_part(generator, number, lanes, wide, target)


def _non_zero(generator: Generator, part: str, lanes: int, source: Element) -> str:
    if source in NARROW:
        part, source = _widen(generator, part, lanes, source), F32
    compare = "fcmp une" if source.kind == "float" else "icmp ne"
    return generator.emitter.emit(f"{compare} {vector_type(source.llvm, lanes)} {part}, {zero(source, lanes)}")


def _widen(generator: Generator, part: str, lanes: int, source: Element) -> str:
    """Narrow floats as fp32, exactly."""
    emitter = generator.emitter
    if source in (E4M3, E5M2):
        return float8.widen(emitter, part, lanes, source)
    if source is F16:
        half = emitter.emit(f"bitcast {vector_type('i16', lanes)} {part} to {vector_type('half', lanes)}")
        return emitter.emit(f"fpext {vector_type('half', lanes)} {half} to {vector_type('float', lanes)}")
    bits = vector_type("i32", lanes)
    wide = emitter.emit(f"zext {vector_type('i16', lanes)} {part} to {bits}")
    moved = emitter.emit(f"shl {bits} {wide}, {emitter.splat('i32', '16', lanes)}")
    return emitter.emit(f"bitcast {bits} {moved} to {vector_type('float', lanes)}")


def _narrow(generator: Generator, part: str, lanes: int, target: Element) -> str:
    """fp32 rounded to the nearest narrow float, ties to even; NaN stays NaN.

    For bf16 this is done on the bits: the instruction that converts takes denormals as zero, which torch does not
    (see `_narrow_by_instruction`).
    """
    emitter, single = generator.emitter, vector_type("float", lanes)
    if target in (E4M3, E5M2):
        return float8.narrow(emitter, part, lanes, target)
    if target is F16:
        half = vector_type("half", lanes)
        # The fence has fp64 go through fp32: rounded at once it would be a call of a library that is not there.
        suffix = "f32" if lanes == 1 else f"v{lanes}f32"
        fenced = emitter.emit(emitter.call(single, f"@llvm.arithmetic.fence.{suffix}", (single, part)))
        rounded = emitter.emit(f"fptrunc {single} {fenced} to {half}")
        return emitter.emit(f"bitcast {half} {rounded} to {vector_type('i16', lanes)}")
    bits = vector_type("i32", lanes)

    def spread(number: int) -> str:
        return emitter.splat("i32", str(number), lanes)

    pattern = emitter.emit(f"bitcast {single} {part} to {bits}")
    upper = emitter.emit(f"lshr {bits} {pattern}, {spread(16)}")
    odd = emitter.emit(f"and {bits} {upper}, {spread(1)}")
    biased = emitter.emit(f"add {bits} {pattern}, {emitter.emit(f'add {bits} {odd}, {spread(0x7FFF)}')}")
    rounded = emitter.emit(f"lshr {bits} {biased}, {spread(16)}")
    ordered = emitter.emit(f"fcmp ord {single} {part}, {zero(F32, lanes)}")
    kept = emitter.emit(f"select {vector_type('i1', lanes)} {ordered}, {bits} {rounded}, {bits} {spread(0x7FC0)}")
    return emitter.emit(f"trunc {bits} {kept} to {vector_type('i16', lanes)}")


def _rounds_to_bf16(generator: Generator, columns: int) -> bool:
    """Whether rows of so many columns are whole registers that the CPU has an instruction for."""
    return generator.emitter.target.has_avx512bf16 and set(generator.widths(columns)) == {_ROUNDED_LANES}


def _narrow_by_instruction(generator: Generator, value: Tile) -> Tile:
    """fp32 as bf16 by `vcvtneps2bf16`, or on the bits where the tile has a denormal, which that takes as zero.

    The test for denormals and the instruction take a third of the time that rounding on the bits does.
    """
    emitter, lanes = generator.emitter, _ROUNDED_LANES
    single, mask, half = (vector_type(kind, lanes) for kind in ("float", "i1", "i16"))
    brain = vector_type("bfloat", lanes)

    def round_part(lanes: int, part: str) -> str:
        rounded = emitter.emit(emitter.call(brain, "@llvm.x86.avx512bf16.cvtneps2bf16.512", (single, part)))
        return emitter.emit(f"bitcast {brain} {rounded} to {half}")

    def round_bits(lanes: int, part: str) -> str:
        return _narrow(generator, part, lanes, BF16)

    def parts_by(make: Callable[[int, str], str]) -> list[str]:
        return list(itertools.chain(*each_part(generator, BF16, [value], make).rows))

    found = [
        emitter.emit(emitter.call(mask, "@llvm.x86.avx512.fpclass.ps.512", (single, part), ("i32", _DENORMAL)))
        for part in dict.fromkeys(itertools.chain(*value.rows))
    ]
    some = found[0]
    for other in found[1:]:
        some = emitter.emit(f"or {mask} {some}, {other}")
    pattern = emitter.emit(f"bitcast {mask} {some} to i{lanes}")
    none = emitter.emit(f"icmp eq i{lanes} {pattern}, 0")
    types = [half] * sum(len(row) for row in value.rows)
    parts = emitter.branch(none, lambda: parts_by(round_part), lambda: parts_by(round_bits), types)
    width = len(value.rows[0])
    return Tile(BF16, value.columns, tuple(tuple(parts[at : at + width]) for at in range(0, len(parts), width)))


def computed_in(element: Element) -> Element:
    """The element type in which arithmetic on `element` is done."""
    return F32 if element in NARROW else element


FLOAT_NAMES = {F32: "f32", F64: "f64"}
"""The element types that have arithmetic of their own, by LLVM's suffix."""
