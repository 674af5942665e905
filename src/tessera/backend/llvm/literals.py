"""Numbers as LLVM IR writes them."""

from __future__ import annotations

import math
import struct

from tessera.backend.llvm.values import BF16, F16, F32, Element


def literal(element: Element, value: float | int | bool) -> str:
    """`value` rounded to nearest in `element`, as an operand; infinities and NaN included."""
    if element.kind == "bool":
        return "true" if value else "false"
    if element.kind == "int":
        return str(int(value))
    if element is F16:
        return str(_signed(_half_bits(float(value))))
    if element is BF16:
        return str(_signed(_bfloat_bits(float(value))))
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


def _signed(bits: int) -> int:
    return bits - (1 << 16) if bits >> 15 else bits
