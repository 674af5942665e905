"""Python numbers as operands: small literals become part of the algebra, all others are run-time arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.lazy.leaves.leaf import Leaf, word_maker
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure

Number: TypeAlias = bool | int | float

LITERALS: Final = frozenset((-2, -1, -0.5, 0, 0.5, 1, 2))
"""Numbers that rewrites know something about (`x * 1`, `x ** 2`); another number here means another structure."""


def _hiding() -> Iterator[float]:
    yield from (-math.inf, -1e9, -1e30)
    yield from (torch.finfo(dtype.torch).min for dtype in (dtypes.fp64, dtypes.fp32, dtypes.bf16))


HIDING: Final = frozenset(_hiding())
"""Floats that users give scores which they hide from a softmax; rewrites know those, too."""


_INT32_LIMIT: Final = 1 << 31


class _Beside:
    """What numbers of one Python type become beside tensors of one dtype: nodes of literals, or leaves of
    `argument`.
    """

    __slots__ = ("argument", "is_narrow", "literals", "word")

    def __init__(self, kind: type[Number], dtype: DType) -> None:
        literal_dtype = dtypes.promote_scalar(dtypes.real_of(dtype), kind())
        argument_dtype = dtypes.accumulator(literal_dtype)
        self.literals: dict[Number, Node] = {
            value: Node((interning.constant(value, literal_dtype), ()))
            for value in LITERALS
            if kind(value) == value and (value >= 0 or not literal_dtype.is_unsigned)  # bytes / -1 are floats
        }
        if literal_dtype.kind == "float" and kind is float:
            # Not of the argument's dtype: a tensor without dimensions would meet it there.
            most = torch.finfo(argument_dtype.torch).max
            self.literals |= {
                value: Node((interning.constant(value if value >= -most else -math.inf, literal_dtype), ()))
                for value in HIDING
            }
        self.argument: Structure = interning.scalar(argument_dtype)
        self.word: Callable[[Number], int] = word_maker(argument_dtype)
        self.is_narrow: bool = argument_dtype is dtypes.int32


_beside: dict[tuple[type, DType], _Beside] = {}


def scalar_node(value: Number, dtype: DType) -> Node:
    """The operand `value` (a bool, int or float, of no subclass) beside tensors whose common dtype is `dtype`.

    A literal has the dtype of the result, as torch determines it; an argument has that dtype's accumulator (fp32 beside
    bf16), since torch too computes with the unrounded number. So an integer beyond int32 stays whole in int64, and
    wraps around where an operator computes in the tensors' dtype, but not where it computes in floats (`x / 2**40`).
    Raises ArgumentError for integers beyond int64.
    """
    kind = type(value)
    key = (kind, dtype)
    beside = _beside.get(key)
    if beside is None:
        beside = _beside.setdefault(key, _Beside(kind, dtype))
    literal = beside.literals.get(value)
    # -0.0 equals 0.0 and is another number.
    if literal is not None and (value or str(value) != "-0.0"):
        return literal
    if beside.is_narrow and not -_INT32_LIMIT <= value < _INT32_LIMIT:
        return scalar_node(value, dtypes.int64)
    argument = beside.argument
    return Node((argument, (Leaf(argument, beside.word(value), value),)))
