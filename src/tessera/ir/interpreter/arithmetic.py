"""The interpreter's arithmetic: `arith` and `math` on tiles, scalars and `index`, one table of torch functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    ShapedType,
    VectorType,
)
from xdsl.ir import Attribute, Operation

from tessera.errors import IRError
from tessera.ir.attributes import INT64
from tessera.ir.interpreter.memory import torch_dtype

Function: TypeAlias = "Callable[..., torch.Tensor]"
Tensor = torch.Tensor


def apply_arithmetic(op: Operation, operands: Sequence[torch.Tensor | int]) -> torch.Tensor | int:
    """The result of an operation whose class is in `ARITHMETIC`: a tensor, or an integer where its type is `index`."""
    result = ARITHMETIC[type(op)](op, *(torch.as_tensor(operand) for operand in operands))
    return int(result) if isinstance(op.results[0].type, IndexType) else result


def computed(value: Tensor) -> Tensor:
    """8-bit floats as fp32, because torch has next to no arithmetic on them; all else unchanged."""
    return value.float() if value.dtype in _FLOAT8 else value


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _plain(function: Function) -> Function:
    """A handler of operations that `function` computes from the operands alone."""

    def handle(op: Operation, *operands: Tensor) -> Tensor:
        result = function(*map(computed, operands))
        dtype = _element(op.results[0].type)
        return result.to(dtype) if dtype in _FLOAT8 else result

    return handle


def _element(kind: Attribute) -> torch.dtype:
    """The torch dtype of a tile's or scalar's type; `index` is int64."""
    element = kind.element_type if isinstance(kind, VectorType) else kind
    return torch_dtype(INT64 if isinstance(element, IndexType) else element)


def _constant(op: arith.ConstantOp) -> Tensor:
    value, dtype = op.value, _element(op.result.type)
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return torch.tensor(value.value.data).to(dtype)
    if not isinstance(value, DenseIntOrFPElementsAttr) or not isinstance(op.result.type, ShapedType):
        raise IRError(f"the interpreter does not know the constant {value}")
    # In double precision or int64 first: torch has no conversion of Python numbers to every narrow type.
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    elements = torch.tensor(list(value.get_values()), dtype=wide)
    return elements.reshape(op.result.type.get_shape()).to(dtype)


def _unsigned(value: Tensor) -> Tensor:
    """Integers whose signed order is the unsigned order of `value`."""
    return value if value.dtype == torch.bool else value ^ torch.iinfo(value.dtype).min


def _signed(value: Tensor) -> Tensor:
    """i1 as the signed numbers 0 and -1; other integers unchanged."""
    return -value.to(torch.int8) if value.dtype == torch.bool else value


def _on(view: Function, function: Function) -> Function:
    """`function` after `view` of both operands."""
    return lambda a, b: function(view(a), view(b))


_CMPI: Sequence[Function] = (
    torch.eq,
    torch.ne,
    *(_on(_signed, function) for function in (torch.lt, torch.le, torch.gt, torch.ge)),
    *(_on(_unsigned, function) for function in (torch.lt, torch.le, torch.gt, torch.ge)),
)


def _cmpi(op: arith.CmpiOp, a: Tensor, b: Tensor) -> Tensor:
    return _CMPI[op.predicate.value.data](a, b)


_ORDERED: Sequence[Function] = (torch.eq, torch.gt, torch.ge, torch.lt, torch.le, torch.ne)


def _cmpf(op: arith.CmpfOp, a: Tensor, b: Tensor) -> Tensor:
    # Predicates in MLIR's order: false; oeq ogt oge olt ole one; ord; ueq ugt uge ult ule une; uno; true.
    predicate = op.predicate.value.data
    a, b = computed(a), computed(b)
    unordered = a.isnan() | b.isnan()
    if predicate in (0, 15):
        return torch.full_like(unordered, predicate == 15)
    if predicate in (7, 14):
        return unordered if predicate == 14 else ~unordered
    compared = _ORDERED[(predicate - 1) % 7](a, b)
    return compared | unordered if predicate > 7 else compared & ~unordered


def _convert(op: Operation, value: Tensor) -> Tensor:
    return value.to(_element(op.results[0].type))


def _sign_extend(op: Operation, value: Tensor) -> Tensor:
    return _signed(value).to(_element(op.results[0].type))


def _zero_extend(op: Operation, value: Tensor) -> Tensor:
    dtype = _element(op.results[0].type)
    if value.dtype == torch.bool:
        return value.to(dtype)
    if value.dtype == torch.int64:
        # Only conversion to floating point extends 64 bits further.
        return torch.where(value >= 0, value.to(dtype), (value.to(torch.float64) + 2.0**64).to(dtype))
    return (value.to(torch.int64) & ((1 << 8 * value.itemsize) - 1)).to(dtype)


def _truncate(op: arith.TruncIOp, value: Tensor) -> Tensor:
    dtype = _element(op.result.type)
    # The lowest bit, where torch would test for non-zero.
    return (value & 1).to(dtype) if dtype == torch.bool else value.to(dtype)


def _bitcast(op: arith.BitcastOp, value: Tensor) -> Tensor:
    return value.view(_element(op.result.type))


def _divide(rounding: str) -> Function:
    def divide(op: Operation, a: Tensor, b: Tensor) -> Tensor:
        if bool((b == 0).any()):
            raise IRError(f"{op.name} by zero")
        return torch.div(a, b, rounding_mode=rounding)

    return divide


def _divide_up(op: Operation, a: Tensor, b: Tensor) -> Tensor:
    return -_divide("floor")(op, -a, b)


def _remainder(op: Operation, a: Tensor, b: Tensor) -> Tensor:
    return a - _divide("trunc")(op, a, b) * b


def _modular(function: Function) -> Function:
    """`function` on integers, where i1 counts modulo 2 (torch has no arithmetic on booleans)."""

    def handle(op: Operation, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype == torch.bool:
            return (function(a.to(torch.int8), b.to(torch.int8)) & 1).to(torch.bool)
        return function(a, b)

    return handle


_FUNCTIONS: Mapping[type[Operation], Function] = {
    arith.AddfOp: operator.add,
    arith.SubfOp: operator.sub,
    arith.MulfOp: operator.mul,
    arith.DivfOp: operator.truediv,
    arith.NegfOp: operator.neg,
    arith.MaximumfOp: torch.maximum,
    arith.MinimumfOp: torch.minimum,
    arith.MaxnumfOp: torch.fmax,
    arith.MinnumfOp: torch.fmin,
    arith.AndIOp: operator.and_,
    arith.OrIOp: operator.or_,
    arith.XOrIOp: operator.xor,
    arith.ShLIOp: operator.lshift,
    arith.ShRSIOp: operator.rshift,
    arith.MaxSIOp: lambda a, b: torch.where(_signed(a) >= _signed(b), a, b),
    arith.MinSIOp: lambda a, b: torch.where(_signed(a) <= _signed(b), a, b),
    arith.MaxUIOp: lambda a, b: torch.where(_unsigned(a) >= _unsigned(b), a, b),
    arith.MinUIOp: lambda a, b: torch.where(_unsigned(a) <= _unsigned(b), a, b),
    arith.SelectOp: torch.where,
    math.AbsFOp: torch.abs,
    math.AbsIOp: torch.abs,
    math.ExpOp: torch.exp,
    math.Exp2Op: torch.exp2,
    math.ExpM1Op: torch.expm1,
    math.LogOp: torch.log,
    math.Log2Op: torch.log2,
    math.Log10Op: torch.log10,
    math.Log1pOp: torch.log1p,
    math.SqrtOp: torch.sqrt,
    math.RsqrtOp: torch.rsqrt,
    math.TanhOp: torch.tanh,
    math.ErfOp: torch.erf,
    math.SinOp: torch.sin,
    math.CosOp: torch.cos,
    math.TanOp: torch.tan,
    math.PowFOp: torch.pow,
    math.CopySignOp: torch.copysign,
    math.FmaOp: lambda a, b, c: a * b + c,
    math.FloorOp: torch.floor,
    math.CeilOp: torch.ceil,
    math.TruncOp: torch.trunc,
    math.RoundEvenOp: torch.round,
    math.RoundOp: lambda value: torch.copysign(torch.floor(value.abs() + 0.5), value),
}

_HANDLERS: Mapping[type[Operation], Function] = {
    arith.ConstantOp: _constant,
    arith.AddiOp: _modular(operator.add),
    arith.SubiOp: _modular(operator.sub),
    arith.MuliOp: _modular(operator.mul),
    arith.DivSIOp: _divide("trunc"),
    arith.FloorDivSIOp: _divide("floor"),
    arith.CeilDivSIOp: _divide_up,
    arith.RemSIOp: _remainder,
    arith.CmpiOp: _cmpi,
    arith.CmpfOp: _cmpf,
    arith.IndexCastOp: _convert,
    arith.ExtFOp: _convert,
    arith.TruncFOp: _convert,
    arith.ExtUIOp: _zero_extend,
    arith.UIToFPOp: _zero_extend,
    arith.ExtSIOp: _sign_extend,
    arith.SIToFPOp: _sign_extend,
    arith.FPToSIOp: _convert,
    arith.TruncIOp: _truncate,
    arith.BitcastOp: _bitcast,
}

ARITHMETIC: Mapping[type[Operation], Function] = {
    **{kind: _plain(function) for kind, function in _FUNCTIONS.items()},
    **_HANDLERS,
}
"""What each operation class computes: called with the operation and its operands as tensors."""
