"""Operations of CUDA Tile IR: their numbers in the binary format, and the attributes that each has there.

"Tile IR", 4. Binary Format and 8. Operations. Numbers and the order of attributes are stable; `VERSION` of the format
is the oldest that has all that is written here, so that every compiler from then on reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias

VERSION: Final = (13, 3)


class Rounding(IntEnum):
    """How a result is rounded."""

    NEAREST_EVEN = 0
    ZERO = 1
    FULL = 5
    NEAREST_INT_TO_ZERO = 6


class Predicate(IntEnum):
    """What a comparison asks."""

    EQ = 0
    NE = 1
    LT = 2
    LE = 3
    GT = 4
    GE = 5


UNSIGNED: Final = 0
SIGNED: Final = 1
UNORDERED: Final = 0
ORDERED: Final = 1
NO_OVERFLOW_FLAGS: Final = 0
WEAK: Final = 0
"""The ordering of accesses that no token orders."""

Kind: TypeAlias = Literal["byte", "count", "ints", "data", "identities", "predicate"]


@dataclass(frozen=True)
class Code:
    """One operation of the format: its number; whether the number of its results is written; whether a word of flags
    is; and its attributes, (name, how it is written), in order.
    """

    number: int
    sized: bool = False
    flagged: bool = False
    attributes: tuple[tuple[str, Kind], ...] = ()


_ROUNDING: Final = (("rounding", "byte"),)
_OVERFLOW: Final = (("overflow", "byte"),)
_SIGN: Final = (("sign", "byte"),)
_MEMORY: Final = (("ordering", "byte"),)


def _rounded(number: int) -> Code:
    """An operation with a flag to flush denormal numbers, which is never set, and a rounding."""
    return Code(number, flagged=True, attributes=(("rounding", "byte"),))


CODES: Final[dict[str, Code]] = {
    "absf": Code(0),
    "absi": Code(1),
    "addf": _rounded(2),
    "addi": Code(3, attributes=(("overflow", "byte"),)),
    "andi": Code(4),
    "assume": Code(6, attributes=(("predicate", "predicate"),)),
    "bitcast": Code(9),
    "broadcast": Code(11),
    "ceil": Code(13),
    "cmpf": Code(14, attributes=(("predicate", "byte"), ("ordering", "byte"))),
    "cmpi": Code(15, attributes=(("predicate", "byte"), ("sign", "byte"))),
    "constant": Code(16, attributes=(("value", "data"),)),
    "continue": Code(17, sized=True),
    "cos": Code(18),
    "divf": _rounded(20),
    "divi": Code(21, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "exp": Code(23, attributes=(("rounding", "byte"),)),
    "exp2": Code(24, flagged=True),
    "exti": Code(37, attributes=(("sign", "byte"),)),
    "extract": Code(38, sized=True),
    "floor": Code(39),
    "fma": _rounded(40),
    "for": Code(41, sized=True, flagged=True),
    "ftof": Code(42, attributes=(("rounding", "byte"),)),
    "ftoi": Code(43, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "get_num_tile_blocks": Code(46),
    "get_tile_block_id": Code(48),
    "if": Code(50, sized=True),
    "iota": Code(58),
    "itof": Code(59, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "load_ptr_tko": Code(61, flagged=True, attributes=(("ordering", "byte"),)),
    "load_view_tko": Code(62, sized=True, flagged=True, attributes=(("ordering", "byte"),)),
    "log": Code(63),
    "log2": Code(64),
    "make_partition_view": Code(66),
    "make_tensor_view": Code(67, sized=True),
    "maxf": Code(69, flagged=True),
    "maxi": Code(70, attributes=(("sign", "byte"),)),
    "minf": Code(71, flagged=True),
    "mini": Code(72, attributes=(("sign", "byte"),)),
    "mmaf": Code(73, flagged=True),
    "mmai": Code(74, attributes=(("sign_a", "byte"), ("sign_b", "byte"))),
    "mulf": _rounded(76),
    "muli": Code(78, attributes=(("overflow", "byte"),)),
    "negf": Code(79),
    "offset": Code(81),
    "ori": Code(82),
    "permute": Code(83, attributes=(("order", "ints"),)),
    "pow": Code(84),
    "reduce": Code(88, sized=True, attributes=(("dim", "count"), ("identities", "identities"))),
    "remi": Code(90, attributes=(("sign", "byte"),)),
    "reshape": Code(91),
    "return": Code(92, sized=True),
    "rsqrt": Code(93, flagged=True),
    "select": Code(95),
    "shli": Code(96, attributes=(("overflow", "byte"),)),
    "shri": Code(97, attributes=(("sign", "byte"),)),
    "sin": Code(98),
    "sqrt": _rounded(100),
    "store_ptr_tko": Code(101, flagged=True, attributes=(("ordering", "byte"),)),
    "store_view_tko": Code(102, sized=True, flagged=True, attributes=(("ordering", "byte"),)),
    "subf": _rounded(103),
    "subi": Code(104, attributes=(("overflow", "byte"),)),
    "tan": Code(105),
    "tanh": Code(106, attributes=(("rounding", "byte"),)),
    "trunci": Code(107, attributes=(("overflow", "byte"),)),
    "xori": Code(108),
    "yield": Code(109, sized=True),
}
"""By their names in Tile IR."""
