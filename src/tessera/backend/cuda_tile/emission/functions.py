"""Functions of f32 and f64 that CUDA Tile IR has, and those that it lacks made of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tessera.backend.cuda_tile.emission.emitter import TileEmitter
from tessera.backend.cuda_tile.program.operations import Predicate, Rounding
from tessera.backend.cuda_tile.program.program import TileValue
from tessera.backend.cuda_tile.program.types import F64, I32, I64
from tessera.backend.llvm.vecmath.coefficients import ERF_F32
from tessera.backend.llvm.vecmath.error_function import DOUBLINGS, SATURATED, SLOPE
from tessera.errors import CompileError

Function = Callable[..., TileValue]
"""Writes a function of values of one type, f32 or f64."""

_LOG10_E: Final = 0.4342944819032518


def plain(name: str) -> Function:
    """One operation."""
    return lambda e, *values: e.build.one(name, values, values[0].type)


def rounded(name: str) -> Function:
    """One operation whose result is the nearest number."""
    return lambda e, *values: e.build.one(name, values, values[0].type, rounding=Rounding.NEAREST_EVEN)


def exp(e: TileEmitter, x: TileValue) -> TileValue:
    """e to the power of x."""
    return e.build.one("exp", [x], x.type, rounding=Rounding.FULL)


def tanh(e: TileEmitter, x: TileValue) -> TileValue:
    """The hyperbolic tangent."""
    return e.build.one("tanh", [x], x.type, rounding=Rounding.FULL)


def _like(e: TileEmitter, x: TileValue, number: float) -> TileValue:
    return e.constant(number, x.tile)


def _fma(e: TileEmitter, a: TileValue, b: TileValue, c: TileValue) -> TileValue:
    return rounded("fma")(e, a, b, c)


def copysign(e: TileEmitter, size: TileValue, sign: TileValue) -> TileValue:
    """The magnitude of one number with the sign of another."""
    bits = I64 if size.number == F64 else I32
    kind, top = size.tile.of(bits), 1 << bits.bits - 1
    words = [e.build.one("bitcast", [value], kind) for value in (size, sign)]
    low = e.build.one("andi", [words[0], e.constant(top - 1, kind)], kind)
    high = e.build.one("andi", [words[1], e.constant(-top, kind)], kind)
    return e.build.one("bitcast", [e.build.one("ori", [low, high], kind)], size.type)


def erf(e: TileEmitter, x: TileValue) -> TileValue:
    """The error function of f32 by the polynomial of `vecmath.error_function`: at most 3.5 ulp."""
    if x.number == F64:
        raise CompileError("CUDA Tile IR has no erf of f64", hints=["leave the knob `backend` at 'triton'"])
    size = plain("absf")(e, x)
    # NaN stays: a comparison with it is false, and `minf` would drop it.
    size = e.build.one("minf", [size, _like(e, x, SATURATED)], x.type, flags=1)
    rest = _like(e, x, ERF_F32[-1])
    for coefficient in ERF_F32[-2::-1]:
        rest = _fma(e, rest, size, _like(e, x, coefficient))
    s = _fma(e, size, _like(e, x, SLOPE), e.arithmetic("mul", size, rest))
    for _ in range(DOUBLINGS):
        s = _fma(e, plain("negf")(e, s), s, e.add(s, s))
    return copysign(e, s, x)


def expm1(e: TileEmitter, x: TileValue) -> TileValue:
    """exp(x) - 1 without the loss near 0: W. Kahan's (u - 1) x / log u with u = exp x."""
    one, u = _like(e, x, 1.0), exp(e, x)
    less = e.arithmetic("sub", u, one)
    exact = rounded("divf")(e, e.arithmetic("mul", less, x), plain("log")(e, u))
    # Where u rounds to 1 the result is x, where u - 1 does to -1 it is that; where u is infinite, so is it.
    exact = e.select(e.compared(Predicate.EQ, u, one), x, exact)
    ends = e.build.one(
        "ori",
        [
            e.compared(Predicate.EQ, less, _like(e, x, -1.0)),
            e.compared(Predicate.EQ, u, _like(e, x, float("inf"))),
        ],
        e.compared(Predicate.EQ, u, one).type,
    )
    return e.select(ends, less, exact)


def log1p(e: TileEmitter, x: TileValue) -> TileValue:
    """log(1 + x) without the loss near 0: W. Kahan's log(u) x / (u - 1) with u = 1 + x."""
    one = _like(e, x, 1.0)
    u = e.add(x, one)
    logarithm = plain("log")(e, u)
    exact = rounded("divf")(e, e.arithmetic("mul", logarithm, x), e.arithmetic("sub", u, one))
    exact = e.select(e.compared(Predicate.EQ, u, one), x, exact)
    return e.select(e.compared(Predicate.EQ, u, _like(e, x, float("inf"))), u, exact)


def log10(e: TileEmitter, x: TileValue) -> TileValue:
    """The logarithm to base 10."""
    return e.arithmetic("mul", plain("log")(e, x), _like(e, x, _LOG10_E))


def trunc(e: TileEmitter, x: TileValue) -> TileValue:
    """The integer towards zero, with the sign of x."""
    return copysign(e, plain("floor")(e, plain("absf")(e, x)), x)


def round_away(e: TileEmitter, x: TileValue) -> TileValue:
    """The nearest integer, of two the one away from zero."""
    size = plain("absf")(e, x)
    whole = plain("floor")(e, size)
    up = e.compared(Predicate.GE, e.arithmetic("sub", size, whole), _like(e, x, 0.5))
    return copysign(e, e.select(up, e.add(whole, _like(e, x, 1.0)), whole), x)


def round_even(e: TileEmitter, x: TileValue) -> TileValue:
    """The nearest integer, of two the even one."""
    size = plain("absf")(e, x)
    whole = plain("floor")(e, size)
    rest, half = e.arithmetic("sub", size, whole), _like(e, x, 0.5)
    halved = e.arithmetic("mul", whole, half)
    odd = e.compared(Predicate.NE, plain("floor")(e, halved), halved)
    tie = e.both(e.compared(Predicate.EQ, rest, half), odd)
    above = e.compared(Predicate.GT, rest, half)
    up = e.build.one("ori", [above, tie], above.type)
    return copysign(e, e.select(up, e.add(whole, _like(e, x, 1.0)), whole), x)
