"""Vector math: mathematical functions as LLVM IR on whole vectors, because LLVM itself has none without a library.

`expand` writes the instructions of one function. fp32 functions are our own polynomials, evaluated in fp64 and rounded
once (`widened`, `trigonometric`), or in fp32 where an approximation is asked for that is faster (`exponential`,
`error_function`); fp64 `exp` and `log` are too, the other fp64 functions call libm lane by lane. Errors stand in each
docstring and are asserted in tests. NaN, infinities, signed zeros and denormals are treated as C99 Annex F says.
Nothing here needs fast-math flags, and under `reassoc`, `nnan` or `ninf` flags the results would be wrong: the emitter
must add none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tessera.backend.llvm.vecmath import error_function, exponential, logarithm, trigonometric, widened
from tessera.backend.llvm.vecmath.lanes import FloatType, InstructionWriter, Lanes, MathTarget
from tessera.backend.llvm.vecmath.trigonometric import REACH

__all__ = ["FUNCTIONS", "REACH", "FloatType", "InstructionWriter", "MathTarget", "expand"]

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
    "cos": trigonometric.cos,
    "erf": widened.erf,
    "exp": widened.exp,
    "exp2": exponential.exp2,
    "expm1": widened.expm1,
    "log": widened.log,
    "log1p": widened.log1p,
    "rsqrt": _rsqrt,
    "sin": trigonometric.sin,
    "sqrt": _sqrt,
    "tanh": widened.tanh,
}
APPROXIMATE: Final[Mapping[str, Unary]] = {
    **SINGLE,
    "erf": error_function.erf,
    "exp": exponential.exp,
    "tanh": exponential.tanh,
}
DOUBLE: Final[Mapping[str, Unary]] = {
    "cos": _libm("cos"),
    "erf": _libm("erf"),
    "exp": exponential.exp,
    "exp2": _libm("exp2"),
    "expm1": _libm("expm1"),
    "log": logarithm.log,
    "log1p": _libm("log1p"),
    "rsqrt": _rsqrt,
    "sin": _libm("sin"),
    "sqrt": _sqrt,
    "tanh": _libm("tanh"),
}
POWER: Final = "powf"
FUNCTIONS: Final = frozenset({*SINGLE, POWER})


def expand(
    function: str,
    arguments: Sequence[str],
    emitter: InstructionWriter,
    lanes: int,
    dtype: FloatType,
    approximate: bool = False,
) -> str:
    """Emits `function` of the arguments on `<lanes x dtype>` (one lane: the scalar type); the result's SSA name.

    Functions carry the names of MLIR's math dialect, one argument each but `powf`, which takes base and exponent; any
    number of lanes is correct, a whole register of the target is fastest. fp32 `sin` and `cos` are those of arguments
    up to `REACH`. With `approximate`, some of fp32 are faster and err by a few ulp. KeyError for a name outside
    `FUNCTIONS`.
    """
    on = Lanes(emitter, lanes, dtype)
    if function == POWER:
        base, exponent = arguments
        return logarithm.powf(on, base, exponent) if dtype == "f32" else on.each_lane("double @pow", base, exponent)
    (argument,) = arguments
    table = DOUBLE if dtype == "f64" else APPROXIMATE if approximate else SINGLE
    return table[function](on, argument)
