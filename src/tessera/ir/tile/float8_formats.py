"""The 8-bit floats of OFP8 in bits, and what rounding makes of numbers that are too large: one rule for all devices.

`dtypes` says it in words: fp8_e4m3 saturates at 448, infinities included; fp8_e5m2 becomes infinite; NaN stays NaN.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

SINGLE_MANTISSA: Final = 23
SINGLE_BIAS: Final = 127


@dataclass(frozen=True)
class Float8Format:
    """Bits of the mantissa, the exponent's bias, the least pattern that is no finite number, and the fp32 pattern from
    which on all numbers become one: what that rounds to.
    """

    mantissa: int
    bias: int
    special: int
    saturates: int

    @property
    def dropped(self) -> int:
        """Bits of an fp32 mantissa that do not fit."""
        return SINGLE_MANTISSA - self.mantissa

    @property
    def offset(self) -> int:
        """What turns an exponent into one of fp32, in place."""
        return SINGLE_BIAS - self.bias << SINGLE_MANTISSA

    @property
    def smallest_normal(self) -> int:
        """As an fp32 pattern."""
        return self.offset + (1 << SINGLE_MANTISSA)

    @property
    def adder(self) -> int:
        """The fp32 pattern of the power of two whose unit in the last place is the smallest number of the format."""
        return self.smallest_normal + (self.dropped << SINGLE_MANTISSA)

    @property
    def rebias(self) -> int:
        """What makes an fp32 exponent one of this format, and all but a tie round up."""
        return (1 << self.dropped - 1) - 1 - self.offset

    @property
    def overflow(self) -> int:
        """The pattern of what is too large."""
        return self.saturates - self.offset >> self.dropped

    @property
    def bound(self) -> float:
        """What all larger numbers are taken for before they are rounded."""
        (number,) = struct.unpack("<f", self.saturates.to_bytes(4, "little"))
        return float(number)


FP8_E4M3: Final = Float8Format(mantissa=3, bias=7, special=0x7F, saturates=0x43E0_0000)
"""448, the largest number: there are no infinities."""
FP8_E5M2: Final = Float8Format(mantissa=2, bias=15, special=0x7C, saturates=0x4780_0000)
"""65536, which is infinity's pattern."""
