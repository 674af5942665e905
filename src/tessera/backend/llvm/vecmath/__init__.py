"""Vector math: mathematical functions as LLVM IR on whole vectors, because LLVM itself has none without a library.

`expand` writes the instructions of one function. fp32 functions are our own polynomials (error bounds stand in each
docstring and are asserted in tests); fp64 `exp` and `log` are too, the other fp64 functions call libm lane by lane.
NaN, infinities, signed zeros and denormals are treated as C99 Annex F says. Nothing here needs fast-math flags, and
under `reassoc`, `nnan` or `ninf` flags the results would be wrong: the emitter must add none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tessera.backend.llvm.vecmath.error_function import erf
from tessera.backend.llvm.vecmath.exponential import exp, exp2, expm1, sigmoid, tanh
from tessera.backend.llvm.vecmath.lanes import Emitter, FloatType, Lanes, MathTarget
from tessera.backend.llvm.vecmath.logarithm import log, log1p, powf
from tessera.backend.llvm.vecmath.trigonometric import cos, sin

__all__ = ["FUNCTIONS", "Emitter", "FloatType", "MathTarget", "expand"]

Unary = Callable[[Lanes, str], str]


def _sqrt(on: Lanes, x: str) -> str:
    return on.intrinsic("sqrt", x)


def _rsqrt(on: Lanes, x: str) -> str:
    return on.div(on.constant(1.0), on.intrinsic("sqrt", x))


def _libm(name: str) -> Unary:
    def call(on: Lanes, x: str) -> str:
        return on.each_lane(f"double @{name}", x)

    return call


SINGLE: Final[Mapping[str, Unary]] = {
    "cos": cos,
    "erf": erf,
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "rsqrt": _rsqrt,
    "sigmoid": sigmoid,
    "sin": sin,
    "sqrt": _sqrt,
    "tanh": tanh,
}
DOUBLE: Final[Mapping[str, Unary]] = {
    "cos": _libm("cos"),
    "erf": _libm("erf"),
    "exp": exp,
    "exp2": _libm("exp2"),
    "expm1": _libm("expm1"),
    "log": log,
    "log1p": _libm("log1p"),
    "rsqrt": _rsqrt,
    "sigmoid": sigmoid,
    "sin": _libm("sin"),
    "sqrt": _sqrt,
    "tanh": _libm("tanh"),
}
POWER: Final = "powf"
FUNCTIONS: Final = frozenset({*SINGLE, POWER})


def expand(function: str, arguments: Sequence[str], emitter: Emitter, lanes: int, dtype: FloatType) -> str:
    """Emits `function` of the arguments on `<lanes x dtype>` (one lane: the scalar type); the result's SSA name.

    Functions carry the names of MLIR's math dialect, one argument each but `powf`, which takes base and exponent; any
    number of lanes is correct, a whole register of the target is fastest. KeyError for a name outside `FUNCTIONS`.
    """
    on = Lanes(emitter, lanes, dtype)
    if function == POWER:
        base, exponent = arguments
        return powf(on, base, exponent) if dtype == "f32" else on.each_lane("double @pow", base, exponent)
    (argument,) = arguments
    return (SINGLE if dtype == "f32" else DOUBLE)[function](on, argument)
