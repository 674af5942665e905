"""Numbers as LLVM IR writes them."""

from __future__ import annotations

import math
import struct
from typing import Final

from tessera.backend.llvm.emission.values import BF16, E4M3, E5M2, F16, F32, Element
from tessera.ir.tile.float8_formats import FP8_E4M3, FP8_E5M2


def literal(element: Element, value: float | int | bool) -> str:
    """`value` rounded to nearest in `element`, as an operand; infinities and NaN included."""
    if element.kind == "bool":
        return "true" if value else "false"
    if element.kind == "int":
        return str(int(value))
    if element is F16:
        return str(_signed(_half_bits(float(value)), 16))
    if element is BF16:
        return str(_signed(_bfloat_bits(float(value)), 16))
    if element in _FLOAT8:
        return str(_signed(_float8_bits(float(value), *_FLOAT8[element]), 8))
    number = _single(float(value)) if element is F32 else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _single(value: float) -> float:
    """`value` in single precision; too large numbers become infinite, as in a conversion by the hardware."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _half_bits(value: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _bfloat_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = int(struct.unpack("<I", struct.pack("<f", _single(value)))[0])
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


_FLOAT8: Final = {
    kind: (form.mantissa, 1 - form.bias, form.overflow) for kind, form in ((E4M3, FP8_E4M3), (E5M2, FP8_E5M2))
}
"""Bits of the mantissa, exponent of the smallest normal number, and what too large numbers become."""


def _float8_bits(value: float, mantissa: int, least: int, largest: int) -> int:
    """The pattern of the nearest 8-bit float, ties to even; NaN is 0x7F."""
    single = _single(value)
    sign = 0x80 if math.copysign(1.0, single) < 0 else 0
    if math.isnan(single):
        return sign | 0x7F
    if math.isinf(single):
        return sign | largest
    # Zero, whose exponent `frexp` calls 0, counts as the smallest numbers do.
    exponent = max(math.frexp(single)[1] - 1, least) if single else least
    # In units of the last place, where `round` takes ties to even; a carry moves into the exponent by itself.
    units = round(math.ldexp(abs(single), mantissa - exponent))
    return sign | min((exponent - least << mantissa) + units, largest)


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits
