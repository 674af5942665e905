"""`arith` and `math` as operations of CUDA Tile IR: one table from operation class to what is written for it.

Functions of 16-bit elements are computed in f32 and rounded after. Division and square root are the correctly rounded
ones, as `arith.divf` and `math.sqrt` are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue

from tessera.backend.cuda_tile.emission import functions
from tessera.backend.cuda_tile.emission.emitter import Handler, TileEmitter, element_of, is_unsigned
from tessera.backend.cuda_tile.program.operations import SIGNED, UNSIGNED, Predicate, Rounding
from tessera.backend.cuda_tile.program.program import TileValue
from tessera.backend.cuda_tile.program.types import F32, I1
from tessera.errors import CompileError

PROPAGATE_NAN = 1


def _constant(e: TileEmitter, op: arith.ConstantOp) -> None:
    value = op.value
    if isinstance(value, (IntegerAttr, FloatAttr)):
        number: float = value.value.data
    elif isinstance(value, DenseIntOrFPElementsAttr) and value.is_splat():
        number = cast(float, next(iter(value.get_values())))
    else:
        raise CompileError("constants of CUDA Tile IR have one value for all elements")
    kind = e.type_of(op.result)
    e.define(op.result, e.constant(bool(number) if kind.number == I1 else number, kind))


def _sum(name: str, e: TileEmitter, op: Operation) -> None:
    """Sums, differences and products; of i1 modulo 2."""
    a, b = (e.get(operand) for operand in op.operands)
    if a.number == I1:
        e.define(op.results[0], e.build.one("andi" if name == "mul" else "xori", [a, b], a.type))
    else:
        e.define(op.results[0], e.arithmetic(name, a, b))


def _plain(name: str, e: TileEmitter, op: Operation, **attributes: Any) -> None:
    """An operation of integers, which computes in its operands' type."""
    values = [e.get(operand) for operand in op.operands]
    e.define(op.results[0], e.build.one(name, values, values[0].type, **attributes))


def widened(e: TileEmitter, values: list[TileValue], compute: functions.Function) -> TileValue:
    """What `compute` makes of values, in f32 where they are narrower."""
    own = values[0].number
    if own.is_narrow:
        return e.converted(compute(e, *(e.converted(value, F32) for value in values)), own)
    return compute(e, *values)


def _function(compute: functions.Function, e: TileEmitter, op: Operation) -> None:
    e.define(op.results[0], widened(e, [e.get(operand) for operand in op.operands], compute))


def _extreme(name: str, propagate: int, e: TileEmitter, op: Operation) -> None:
    a, b = (e.get(operand) for operand in op.operands)
    e.define(op.results[0], e.build.one(name, [a, b], a.type, flags=propagate))


def _integer_extreme(name: str, bitwise: str, e: TileEmitter, op: Operation) -> None:
    """The larger or smaller of integers; of signed bits, of which true is -1, by `bitwise`."""
    a, b = (e.get(operand) for operand in op.operands)
    if a.number == I1:
        e.define(op.results[0], e.build.one(bitwise, [a, b], a.type))
    else:
        e.define(op.results[0], e.build.one(name, [a, b], a.type, sign=SIGNED))


_PREDICATES = (Predicate.EQ, Predicate.NE, Predicate.LT, Predicate.LE, Predicate.GT, Predicate.GE)


def _compare(e: TileEmitter, op: arith.CmpiOp) -> None:
    predicate = op.predicate.value.data
    if predicate >= len(_PREDICATES):
        raise CompileError("CUDA Tile IR kernels compare signed integers only")
    e.define(op.result, e.compared(_PREDICATES[predicate], e.get(op.lhs), e.get(op.rhs)))


def _select(e: TileEmitter, op: arith.SelectOp) -> None:
    condition, a, b = e.get(op.cond), e.get(op.lhs), e.get(op.rhs)
    e.define(op.result, e.select(e.spread(condition, a.tile.shape) if a.tile.shape else condition, a, b))


def convert(e: TileEmitter, value: SSAValue, result: SSAValue) -> None:
    """A value in the element type of `result`; to i1 is a test for non-zero, as torch's `to` does it."""
    signs = is_unsigned(value.type), is_unsigned(result.type)
    e.define(result, e.converted(e.get(value), element_of(result.type), *signs))


def _convert(e: TileEmitter, op: Operation) -> None:
    convert(e, op.operands[0], op.results[0])


def _zero_extend(e: TileEmitter, op: arith.ExtUIOp) -> None:
    e.define(op.result, e.build.one("exti", [e.get(op.input)], e.type_of(op.result), sign=UNSIGNED))


def _bitcast(e: TileEmitter, op: arith.BitcastOp) -> None:
    e.define(op.result, e.build.one("bitcast", [e.get(op.input)], e.type_of(op.result)))


_FUNCTIONS: Mapping[type[Operation], functions.Function] = {
    math.AbsFOp: functions.plain("absf"),
    math.ExpOp: functions.exp,
    math.Exp2Op: functions.plain("exp2"),
    math.LogOp: functions.plain("log"),
    math.Log2Op: functions.plain("log2"),
    math.RsqrtOp: functions.plain("rsqrt"),
    math.SinOp: functions.plain("sin"),
    math.CosOp: functions.plain("cos"),
    math.TanOp: functions.plain("tan"),
    math.FloorOp: functions.plain("floor"),
    math.CeilOp: functions.plain("ceil"),
    math.TanhOp: functions.tanh,
    math.PowFOp: functions.plain("pow"),
    math.SqrtOp: functions.rounded("sqrt"),
    math.FmaOp: functions.rounded("fma"),
    arith.DivfOp: functions.rounded("divf"),
    math.ErfOp: functions.erf,
    math.ExpM1Op: functions.expm1,
    math.Log1pOp: functions.log1p,
    math.Log10Op: functions.log10,
    math.TruncOp: functions.trunc,
    math.RoundOp: functions.round_away,
    math.RoundEvenOp: functions.round_even,
    math.CopySignOp: functions.copysign,
}

ARITHMETIC = cast(
    "Mapping[type[Operation], Handler]",
    {
        **{kind: partial(_function, compute) for kind, compute in _FUNCTIONS.items()},
        arith.ConstantOp: _constant,
        arith.AddfOp: partial(_sum, "add"),
        arith.SubfOp: partial(_sum, "sub"),
        arith.MulfOp: partial(_sum, "mul"),
        arith.AddiOp: partial(_sum, "add"),
        arith.SubiOp: partial(_sum, "sub"),
        arith.MuliOp: partial(_sum, "mul"),
        arith.DivSIOp: partial(_plain, "divi", sign=SIGNED, rounding=Rounding.ZERO),
        arith.RemSIOp: partial(_plain, "remi", sign=SIGNED),
        arith.AndIOp: partial(_plain, "andi"),
        arith.OrIOp: partial(_plain, "ori"),
        arith.XOrIOp: partial(_plain, "xori"),
        arith.ShLIOp: partial(_plain, "shli", overflow=0),
        arith.ShRSIOp: partial(_plain, "shri", sign=SIGNED),
        arith.NegfOp: partial(_plain, "negf"),
        math.AbsIOp: partial(_plain, "absi"),
        arith.MaximumfOp: partial(_extreme, "maxf", PROPAGATE_NAN),
        arith.MinimumfOp: partial(_extreme, "minf", PROPAGATE_NAN),
        arith.MaxnumfOp: partial(_extreme, "maxf", 0),
        arith.MinnumfOp: partial(_extreme, "minf", 0),
        arith.MaxSIOp: partial(_integer_extreme, "maxi", "andi"),
        arith.MinSIOp: partial(_integer_extreme, "mini", "ori"),
        arith.CmpiOp: _compare,
        arith.SelectOp: _select,
        arith.IndexCastOp: _convert,
        arith.ExtFOp: _convert,
        arith.TruncFOp: _convert,
        arith.SIToFPOp: _convert,
        arith.FPToSIOp: _convert,
        arith.ExtUIOp: _zero_extend,
        arith.BitcastOp: _bitcast,
    },
)
"""What is written for each operation; all are pure."""
