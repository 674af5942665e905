"""Conversions between element types, as torch's `to` makes them."""

from __future__ import annotations

from collections.abc import Callable

from tessera.backend.llvm.emitter import zero
from tessera.backend.llvm.generator import Generator
from tessera.backend.llvm.values import BF16, F16, F32, F64, I64, Element, Tile, vector_type


def each_part(generator: Generator, element: Element, tiles: list[Tile], make: Callable[..., str]) -> Tile:
    """A tile of `element` whose parts are `make(lanes, operand...)` of the tiles' parts.

    Rows that hold the same operands, as in a tile spread over rows, are made once.
    """
    widths = generator.widths(tiles[0].columns)
    made: dict[tuple[int, tuple[str, ...]], str] = {}
    rows = []
    for row in zip(*(tile.rows for tile in tiles), strict=True):
        parts = []
        for lanes, operands in zip(widths, zip(*row, strict=True), strict=True):
            if (lanes, operands) not in made:
                made[lanes, operands] = make(lanes, *operands)
            parts.append(made[lanes, operands])
        rows.append(tuple(parts))
    return Tile(element, tiles[0].columns, tuple(rows))


def convert(generator: Generator, value: Tile, element: Element) -> Tile:
    """The tile with its elements converted: floats to integers truncate, anything to i1 tests for non-zero."""
    if value.element is element:
        return value
    return each_part(
        generator, element, [value], lambda lanes, part: convert_part(generator, part, lanes, value.element, element)
    )


def convert_part(generator: Generator, part: str, lanes: int, source: Element, target: Element) -> str:
    """One part of a tile, or a scalar, converted."""
    emitter = generator.emitter
    if source is target:
        return part
    if target.kind == "bool":
        return _non_zero(generator, part, lanes, source)
    if source in (F16, BF16):
        return convert_part(generator, _widen(generator, part, lanes, source), lanes, F32, target)
    if target in (F16, BF16):
        # As torch does, through fp32, wherever the number comes from.
        single = convert_part(generator, part, lanes, source, F32)
        return _narrow(generator, single, lanes, target)
    kinds = f"{vector_type(source.llvm, lanes)} {part} to {vector_type(target.llvm, lanes)}"
    if source.kind == "float" and target.kind == "float":
        return emitter.emit(f"{'fpext' if source is F32 else 'fptrunc'} {kinds}")
    if source.kind == "float":
        return _truncate_to_integer(generator, part, lanes, source, target)
    if target.kind == "float":
        return emitter.emit(f"{'uitofp' if source.kind == 'bool' else 'sitofp'} {kinds}")
    if source.kind == "bool" or target.size > source.size:
        return emitter.emit(f"{'zext' if source.kind == 'bool' else 'sext'} {kinds}")
    return emitter.emit(f"trunc {kinds}")


def _truncate_to_integer(generator: Generator, part: str, lanes: int, source: Element, target: Element) -> str:
    """Numbers that do not fit give whatever the CPU gives, hence `freeze`: LLVM would call them poison."""
    emitter = generator.emitter
    wide = target if target.size >= 4 else I64
    kind = vector_type(wide.llvm, lanes)
    number = emitter.emit(f"fptosi {vector_type(source.llvm, lanes)} {part} to {kind}")
    number = emitter.emit(f"freeze {kind} {number}")
    return convert_part(generator, number, lanes, wide, target)


def _non_zero(generator: Generator, part: str, lanes: int, source: Element) -> str:
    if source in (F16, BF16):
        part, source = _widen(generator, part, lanes, source), F32
    compare = "fcmp une" if source.kind == "float" else "icmp ne"
    return generator.emitter.emit(f"{compare} {vector_type(source.llvm, lanes)} {part}, {zero(source, lanes)}")


def _widen(generator: Generator, part: str, lanes: int, source: Element) -> str:
    """16-bit floats as fp32, exactly."""
    emitter = generator.emitter
    if source is F16:
        half = emitter.emit(f"bitcast {vector_type('i16', lanes)} {part} to {vector_type('half', lanes)}")
        return emitter.emit(f"fpext {vector_type('half', lanes)} {half} to {vector_type('float', lanes)}")
    bits = vector_type("i32", lanes)
    wide = emitter.emit(f"zext {vector_type('i16', lanes)} {part} to {bits}")
    moved = emitter.emit(f"shl {bits} {wide}, {emitter.splat('i32', '16', lanes)}")
    return emitter.emit(f"bitcast {bits} {moved} to {vector_type('float', lanes)}")


def _narrow(generator: Generator, part: str, lanes: int, target: Element) -> str:
    """fp32 rounded to the nearest 16-bit float, ties to even; NaN stays NaN.

    For bf16 this is done on the bits: the instruction that converts takes denormals as zero, which torch does not.
    """
    emitter, single = generator.emitter, vector_type("float", lanes)
    if target is F16:
        half = vector_type("half", lanes)
        rounded = emitter.emit(f"fptrunc {single} {part} to {half}")
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


def computed_in(element: Element) -> Element:
    """The element type in which arithmetic on `element` is done."""
    return F32 if element in (F16, BF16) else element


FLOAT_NAMES = {F32: "f32", F64: "f64"}
"""The element types that have arithmetic of their own, by LLVM's suffix."""
