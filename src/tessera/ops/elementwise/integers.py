"""Functions of integers: `floor_divide`, the bits `bitwise_and bitwise_or bitwise_xor bitwise_not`, and shifts.

Integers wrap around. None of these has a gradient.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import torch

from tessera.dtypes import DType, bool_, fp64, int64
from tessera.ops.applications import maps
from tessera.ops.applications.rule import AbstractValue, Application, Rule
from tessera.ops.elementwise.dtypes import common
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Typed, dtype_error

LARGEST: Final = float((1 << 63) - (1 << 10))
"""The largest double below 2 ** 63: an int64 holds it."""


def _integers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The integer dtype in which operands meet. Raises DTypeError for others."""
    met = common(name, operands, attributes)
    if met[0].kind != "int":
        raise dtype_error(name, operands, "defined on integers only", ["cast to int64"])
    return met


def _bits(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The dtype in which operands meet: integers, or bools. Raises DTypeError for others."""
    met = common(name, operands, attributes)
    if met[0].kind not in ("int", "bool"):
        raise dtype_error(name, operands, "defined on integers and bools only", ["cast to int64"])
    return met


def _of_kinds(count: int, *kinds: str) -> Rule:
    """The rule of a map of so many operands of a dtype of these kinds."""
    of_all = maps.of_maps(count)

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        return of_all(chance, x) if x.dtype.kind in kinds else None

    return rule


# -- quotients --------------------------------------------------------------------------------------------------------


def _floor_divide(e: Emitter[V], a: V, b: V) -> V:
    """The quotient in doubles, corrected by the remainder in integers; vector units have no division of integers.

    Up to 32 bits a double's quotient is exact enough: it is off an integer by 2 ** -32 at least, or is one.
    """
    zero, one = e.constant(0, b), e.constant(1, b)
    is_zero = e.compare("eq", b, zero)
    divisor = e.select(is_zero, one, b)
    wide = e.cast(divisor, fp64)
    if a.dtype.itemsize < int64.itemsize:
        narrow = e.cast(e.cast(e.floor(e.div(e.cast(a, fp64), wide)), int64), a.dtype)
        return e.select(is_zero, zero, narrow)
    # Of 63 bits a double has the first 53, so that the quotient of what is left is a small correction.
    first = e.div(e.cast(a, fp64), wide)
    bounded = e.maximum(e.minimum(first, e.constant(LARGEST, first)), e.constant(-LARGEST, first))
    quotient = e.cast(bounded, int64)
    rest = e.sub(a, e.mul(quotient, divisor))
    correction = e.cast(e.floor(e.div(e.cast(rest, fp64), wide)), int64)
    quotient, rest = e.add(quotient, correction), e.sub(rest, e.mul(correction, divisor))
    # The correction is itself rounded: the rest lies one divisor off at most.
    positive = e.compare("gt", divisor, zero)
    below = e.select(positive, e.compare("lt", rest, zero), e.compare("gt", rest, zero))
    beyond = e.select(positive, e.compare("ge", rest, divisor), e.compare("le", rest, divisor))
    step = e.select(below, e.constant(-1, b), e.select(beyond, one, zero))
    return e.select(is_zero, zero, e.add(quotient, step))


def _floor_divide_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b == 0, 0, torch.floor_divide(a, torch.where(b == 0, 1, b)))


# -- bits -------------------------------------------------------------------------------------------------------------


def _and(e: Emitter[V], a: V, b: V) -> V:
    return e.logical_and(a, b) if a.dtype is bool_ else e.bitwise_and(a, b)


def _or(e: Emitter[V], a: V, b: V) -> V:
    """The bits that one has, and those that both have."""
    return e.logical_or(a, b) if a.dtype is bool_ else e.bitwise_xor(e.bitwise_xor(a, b), e.bitwise_and(a, b))


def _xor(e: Emitter[V], a: V, b: V) -> V:
    if a.dtype is bool_:
        return e.logical_and(e.logical_or(a, b), e.logical_not(e.logical_and(a, b)))
    return e.bitwise_xor(a, b)


def _not(e: Emitter[V], x: V) -> V:
    return e.logical_not(x) if x.dtype is bool_ else e.sub(e.constant(-1, x), x)


# -- shifts -----------------------------------------------------------------------------------------------------------


def _is_within(e: Emitter[V], a: V, b: V) -> V:
    """Whether a shift by b leaves bits: from 0 to the width less 1."""
    least = e.compare("ge", b, e.constant(0, b))
    return e.logical_and(least, e.compare("lt", b, e.constant(a.dtype.bits, b)))


def _shift_left(e: Emitter[V], a: V, b: V) -> V:
    """a times 2 to the b, by the powers of two that b is made of; 0 where no bit is left."""
    within = _is_within(e, a, b)
    zero = e.constant(0, b)
    shift, shifted = e.select(within, b, zero), a
    power = 1
    while power < a.dtype.bits:
        has = e.compare("ne", e.bitwise_and(shift, e.constant(power, b)), zero)
        # The factor as a number of the dtype, where 2 ** 63 of int64 would be none.
        shifted = e.select(has, e.mul(shifted, e.constant(1 << power, a)), shifted)
        power *= 2
    return e.select(within, shifted, e.constant(0, a))


def _shift_right(e: Emitter[V], a: V, b: V) -> V:
    """Of a shift that leaves no bit, the sign."""
    return e.shift_right(a, e.select(_is_within(e, a, b), b, e.constant(a.dtype.bits - 1, b)))


ROWS = (
    elementwise(
        "floor_divide", _floor_divide, None, _floor_divide_reference, _integers,
        application=_of_kinds(2, "int"),
    ),
    elementwise(
        "bitwise_and", _and, None, torch.bitwise_and, _bits, cheap=True, application=_of_kinds(2, "int", "bool")
    ),
    elementwise(
        "bitwise_or", _or, None, torch.bitwise_or, _bits, cheap=True, application=_of_kinds(2, "int", "bool")
    ),
    elementwise(
        "bitwise_xor", _xor, None, torch.bitwise_xor, _bits, cheap=True, application=_of_kinds(2, "int", "bool")
    ),
    elementwise(
        "bitwise_not", _not, None, torch.bitwise_not, _bits, cheap=True, application=_of_kinds(1, "int", "bool")
    ),
    elementwise(
        "bitwise_left_shift", _shift_left, None, torch.bitwise_left_shift, _integers, application=_of_kinds(2, "int")
    ),
    elementwise(
        "bitwise_right_shift", _shift_right, None, torch.bitwise_right_shift, _integers, cheap=True,
        application=_of_kinds(2, "int"),
    ),
)  # fmt: skip
"""One row an operator: name, body, no gradient, reference, dtypes of operands, and what else is special."""
