"""8-bit floats as fp32 and back, on bit patterns: no CPU that LLVM knows converts them for us.

Widening goes through fp16, which holds every number of both formats. Rounding works as in Hauser's "Berkeley SoftFloat"
and in torch's `Float8_e4m3fn.h` and `Float8_e5m2.h`, whose results these are to the bit: half a unit in the last place
less the tie is added to the pattern, and the carry moves into the exponent by itself; numbers below the smallest normal
one are rounded by the adder, beside a number whose last place is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.values import E4M3, E5M2, Element, vector_type
from tessera.ir.tile.float8_formats import FP8_E4M3, FP8_E5M2, SINGLE_MANTISSA, Float8Format

_INFINITY: Final = 0xFF << SINGLE_MANTISSA
_MAGNITUDE: Final = 0x7FFF_FFFF


_FORMATS: Final[Mapping[Element, Float8Format]] = {E4M3: FP8_E4M3, E5M2: FP8_E5M2}


def widen(emitter: FunctionEmitter, part: str, lanes: int, source: Element) -> str:
    """8-bit floats as fp32, exactly; the bits of a NaN become the highest ones of its mantissa, as in torch."""
    short, half, single = (vector_type(kind, lanes) for kind in ("i16", "half", "float"))

    def on_shorts(instruction: str, operand: str, number: int) -> str:
        return emitter.emit(f"{instruction} {short} {operand}, {emitter.splat('i16', str(number), lanes)}")

    wide = emitter.emit(f"zext {vector_type('i8', lanes)} {part} to {short}")
    pattern = on_shorts("shl", wide, 8)
    if source is E4M3:
        # The same mantissa and exponent as fp16, which is 2 to the 8 times smaller because of the other bias.
        pattern = on_shorts("and", on_shorts("ashr", pattern, 1), -0x4001)
        magnitude = on_shorts("and", wide, 0x7F)
        is_nan = emitter.emit(f"icmp eq {short} {magnitude}, {emitter.splat('i16', '127', lanes)}")
        no_number = on_shorts("or", pattern, 0x7F80)
        choice = f"{vector_type('i1', lanes)} {is_nan}, {short} {no_number}, {short} {pattern}"
        pattern = emitter.emit(f"select {choice}")
    number = emitter.emit(f"bitcast {short} {pattern} to {half}")
    number = emitter.emit(f"fpext {half} {number} to {single}")
    return (
        emitter.emit(f"fmul {single} {number}, {emitter.splat('float', '256.0', lanes)}") if source is E4M3 else number
    )


def narrow(emitter: FunctionEmitter, part: str, lanes: int, target: Element) -> str:
    """fp32 rounded to the nearest 8-bit float, ties to even. NaN becomes 0x7F, its sign is kept."""
    form = _FORMATS[target]
    bits, single, mask = (vector_type(kind, lanes) for kind in ("i32", "float", "i1"))

    def on_bits(instruction: str, operand: str, number: int | str) -> str:
        other = number if isinstance(number, str) else emitter.splat("i32", str(number), lanes)
        return emitter.emit(f"{instruction} {bits} {operand}, {other}")

    def choose(condition: str, a: str, b: str) -> str:
        return emitter.emit(f"select {mask} {condition}, {bits} {a}, {bits} {b}")

    def spread(number: int) -> str:
        return emitter.splat("i32", str(number), lanes)

    pattern = emitter.emit(f"bitcast {single} {part} to {bits}")
    magnitude = on_bits("and", pattern, _MAGNITUDE)
    clamped = choose(on_bits("icmp ult", magnitude, form.saturates), magnitude, spread(form.saturates))
    odd = on_bits("and", on_bits("lshr", clamped, form.dropped), 1)
    normal = on_bits("lshr", on_bits("add", on_bits("add", clamped, form.rebias), odd), form.dropped)
    adder = emitter.emit(f"bitcast {bits} {spread(form.adder)} to {single}")
    small = emitter.emit(f"bitcast {bits} {clamped} to {single}")
    small = emitter.emit(f"bitcast {single} {emitter.emit(f'fadd {single} {small}, {adder}')} to {bits}")
    rounded = choose(on_bits("icmp ult", clamped, form.smallest_normal), on_bits("sub", small, form.adder), normal)
    rounded = choose(on_bits("icmp ugt", magnitude, _INFINITY), spread(0x7F), rounded)
    sign = on_bits("and", on_bits("lshr", pattern, 24), 0x80)
    return emitter.emit(f"trunc {bits} {on_bits('or', rounded, sign)} to {vector_type('i8', lanes)}")
