"""`math`'s functions of tiles: expansions of `vecmath`, libm lane by lane, and sin and cos of any argument.

With the flag `afn` ("approximate functions") an operation may err by a few ulp where that is faster. Floats of 16 bits
and less get the same: what they are rounded to takes no note of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast

from xdsl.dialects import math
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Operation

from tessera.backend.llvm.emission.control import flatten, rebuild
from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.literals import literal
from tessera.backend.llvm.emission.values import F32, I1, NARROW, Element, Tile, Value, vector_type
from tessera.backend.llvm.tiles.arithmetic import Maker, apply, compare, intrinsic, select
from tessera.backend.llvm.tiles.conversion import computed_in, convert, each_part
from tessera.backend.llvm.vecmath import REACH, FloatType, expand


def _expanded(function: str, approximate: bool = False) -> Maker:
    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        dtype: FloatType = "f64" if element.llvm == "double" else "f32"
        return expand(function, operands, generator.emitter, lanes, dtype, approximate)

    return make


def _may_approximate(op: Operation, operand: Tile) -> bool:
    flags = op.properties.get("fastmath")
    return operand.element in NARROW or (
        isinstance(flags, FastMathFlagsAttr) and FastMathFlag.APPROX_FUNC in flags.data
    )


def _function(name: str) -> Handler:
    def handle(generator: Generator, op: Operation) -> Sequence[Value]:
        operands = [generator.tile(operand) for operand in op.operands]
        return (apply(generator, _expanded(name, _may_approximate(op, operands[0])), operands),)

    return handle


# -- libm -------------------------------------------------------------------------------------------------------------


def _libm(function: str) -> Handler:
    """libm's function on every lane; its fp32 form has the suffix f."""

    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        emitter, scalar = generator.emitter, element.llvm
        name = f"@{function}{'f' if scalar == 'float' else ''}"
        kind, total = vector_type(scalar, lanes), "poison"
        for lane in range(lanes):
            picked = list(operands)
            if lanes > 1:
                picked = [emitter.emit(f"extractelement {kind} {operand}, i64 {lane}") for operand in operands]
            result = emitter.emit(emitter.call(scalar, name, *((scalar, operand) for operand in picked)))
            if lanes == 1:
                return result
            total = emitter.emit(f"insertelement {kind} {total}, {scalar} {result}, i64 {lane}")
        return total

    def handle(generator: Generator, op: Operation) -> Sequence[Value]:
        return (apply(generator, make, [generator.tile(operand) for operand in op.operands]),)

    return handle


# -- sin and cos ------------------------------------------------------------------------------------------------------


def _periodic(name: str) -> Handler:
    """The expansion, and a branch behind it, taken where an argument is beyond its reach, to libm's fp64 function."""

    def handle(generator: Generator, op: Operation) -> Sequence[Value]:
        value = generator.tile(op.operands[0])
        x = convert(generator, value, computed_in(value.element))
        near = apply(generator, _expanded(name), [x])
        if x.element is not F32:
            return (near,)
        limit = _splat(generator, REACH, x)
        far = compare(generator, apply(generator, intrinsic("fabs"), [x]), limit, "fcmp ogt")

        def exactly(lanes: int, part: str) -> str:
            return _called_in_double(generator.emitter, name, part, lanes)

        def mended() -> list[str]:
            return _operands(generator, select(generator, far, each_part(generator, F32, [x], exactly), near))

        types = [kind for kind, _ in flatten(generator, [near])]
        names = generator.emitter.branch(_any(generator, far), mended, lambda: _operands(generator, near), types)
        (result,) = rebuild(generator, [near], names)
        assert isinstance(result, Tile)
        return (convert(generator, result, value.element),)

    return handle


def _operands(generator: Generator, value: Tile) -> list[str]:
    return [operand for _, operand in flatten(generator, [value])]


def _splat(generator: Generator, number: float, like: Tile) -> Tile:
    text = literal(like.element, number)
    row = tuple(generator.emitter.splat(like.element.llvm, text, lanes) for lanes in generator.widths(like.columns))
    return Tile(like.element, like.columns, (row,) * len(like.rows))


def _any(generator: Generator, condition: Tile) -> str:
    """Whether an i1 tile holds a true element."""
    assert condition.element is I1
    emitter = generator.emitter
    together: dict[str, str] = {}  # one vector of each type
    for kind, part in dict.fromkeys(flatten(generator, [condition])):
        together[kind] = emitter.emit(f"or {kind} {together[kind]}, {part}") if kind in together else part
    bits = [
        part
        if kind == "i1"
        else emitter.emit(emitter.call("i1", f"@llvm.vector.reduce.or.{_suffix(kind)}", (kind, part)))
        for kind, part in together.items()
    ]
    return reduce(lambda one, other: emitter.emit(f"or i1 {one}, {other}"), bits)


def _suffix(kind: str) -> str:
    """What an intrinsic's name says of `<N x i1>`."""
    return f"v{kind[1:].split(maxsplit=1)[0]}i1"


def _called_in_double(emitter: FunctionEmitter, function: str, x: str, lanes: int) -> str:
    """libm's function of doubles on fp32 lanes; a loop in a function of its own, as it is code that seldom runs."""
    emitter.declare(f"double @{function}(double)")
    kind, name = vector_type("float", lanes), f"@{function}.far.{lanes}"
    lane = ("%x", "%y") if lanes == 1 else ("%lane", "%result")
    body = (
        f"  %wide = fpext float {lane[0]} to double\n"
        f"  %exact = call double @{function}(double %wide)\n"
        f"  {lane[1]} = fptrunc double %exact to float\n"
    )
    if lanes > 1:
        body = (
            f"  br label %loop\nloop:\n"
            f"  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n"
            f"  %done = phi {kind} [ %x, %entry ], [ %y, %loop ]\n"
            f"  %lane = extractelement {kind} %x, i64 %i\n{body}"
            f"  %y = insertelement {kind} %done, float %result, i64 %i\n"
            f"  %next = add i64 %i, 1\n"
            f"  %more = icmp ult i64 %next, {lanes}\n"
            f"  br i1 %more, label %loop, label %leave\nleave:\n"
        )
    emitter.define(f"define internal {kind} {name}({kind} %x) noinline cold #0 {{\nentry:\n{body}  ret {kind} %y\n}}")
    return emitter.emit(f"call {kind} {name}({kind} {x})")


FUNCTIONS = cast(
    "dict[type[Operation], Handler]",
    {
        math.PowFOp: _function("powf"),
        math.ExpOp: _function("exp"),
        math.Exp2Op: _function("exp2"),
        math.ExpM1Op: _function("expm1"),
        math.LogOp: _function("log"),
        math.Log1pOp: _function("log1p"),
        math.Log2Op: _libm("log2"),
        math.Log10Op: _libm("log10"),
        math.SqrtOp: _function("sqrt"),
        math.RsqrtOp: _function("rsqrt"),
        math.TanhOp: _function("tanh"),
        math.ErfOp: _function("erf"),
        math.SinOp: _periodic("sin"),
        math.CosOp: _periodic("cos"),
        math.TanOp: _libm("tan"),
    },
)
"""The handler of each operation class."""
