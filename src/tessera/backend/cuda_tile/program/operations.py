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
class Opcode:
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


def _rounded(number: int) -> Opcode:
    """An operation with a flag to flush denormal numbers, which is never set, and a rounding."""
    return Opcode(number, flagged=True, attributes=(("rounding", "byte"),))


CODES: Final[dict[str, Opcode]] = {
    "absf": Opcode(0),
    "absi": Opcode(1),
    "addf": _rounded(2),
    "addi": Opcode(3, attributes=(("overflow", "byte"),)),
    "andi": Opcode(4),
    "assume": Opcode(6, attributes=(("predicate", "predicate"),)),
    "bitcast": Opcode(9),
    "broadcast": Opcode(11),
    "ceil": Opcode(13),
    "cmpf": Opcode(14, attributes=(("predicate", "byte"), ("ordering", "byte"))),
    "cmpi": Opcode(15, attributes=(("predicate", "byte"), ("sign", "byte"))),
    "constant": Opcode(16, attributes=(("value", "data"),)),
    "continue": Opcode(17, sized=True),
    "cos": Opcode(18),
    "divf": _rounded(20),
    "divi": Opcode(21, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "exp": Opcode(23, attributes=(("rounding", "byte"),)),
    "exp2": Opcode(24, flagged=True),
    "exti": Opcode(37, attributes=(("sign", "byte"),)),
    "extract": Opcode(38, sized=True),
    "floor": Opcode(39),
    "fma": _rounded(40),
    "for": Opcode(41, sized=True, flagged=True),
    "ftof": Opcode(42, attributes=(("rounding", "byte"),)),
    "ftoi": Opcode(43, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "get_num_tile_blocks": Opcode(46),
    "get_tile_block_id": Opcode(48),
    "if": Opcode(50, sized=True),
    "iota": Opcode(58),
    "itof": Opcode(59, attributes=(("sign", "byte"), ("rounding", "byte"))),
    "load_ptr_tko": Opcode(61, flagged=True, attributes=(("ordering", "byte"),)),
    "load_view_tko": Opcode(62, sized=True, flagged=True, attributes=(("ordering", "byte"),)),
    "log": Opcode(63),
    "log2": Opcode(64),
    "make_partition_view": Opcode(66),
    "make_tensor_view": Opcode(67, sized=True),
    "maxf": Opcode(69, flagged=True),
    "maxi": Opcode(70, attributes=(("sign", "byte"),)),
    "minf": Opcode(71, flagged=True),
    "mini": Opcode(72, attributes=(("sign", "byte"),)),
    "mmaf": Opcode(73, flagged=True),
    "mmai": Opcode(74, attributes=(("sign_a", "byte"), ("sign_b", "byte"))),
    "mulf": _rounded(76),
    "muli": Opcode(78, attributes=(("overflow", "byte"),)),
    "negf": Opcode(79),
    "offset": Opcode(81),
    "ori": Opcode(82),
    "permute": Opcode(83, attributes=(("order", "ints"),)),
    "pow": Opcode(84),
    "reduce": Opcode(88, sized=True, attributes=(("dim", "count"), ("identities", "identities"))),
    "remi": Opcode(90, attributes=(("sign", "byte"),)),
    "reshape": Opcode(91),
    "return": Opcode(92, sized=True),
    "rsqrt": Opcode(93, flagged=True),
    "select": Opcode(95),
    "shli": Opcode(96, attributes=(("overflow", "byte"),)),
    "shri": Opcode(97, attributes=(("sign", "byte"),)),
    "sin": Opcode(98),
    "sqrt": _rounded(100),
    "store_ptr_tko": Opcode(101, flagged=True, attributes=(("ordering", "byte"),)),
    "store_view_tko": Opcode(102, sized=True, flagged=True, attributes=(("ordering", "byte"),)),
    "subf": _rounded(103),
    "subi": Opcode(104, attributes=(("overflow", "byte"),)),
    "tan": Opcode(105),
    "tanh": Opcode(106, attributes=(("rounding", "byte"),)),
    "trunci": Opcode(107, attributes=(("overflow", "byte"),)),
    "xori": Opcode(108),
    "yield": Opcode(109, sized=True),
}
"""By their names in Tile IR."""
