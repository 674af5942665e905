"""The interpreter's arithmetic: `arith` and `math` on tiles, scalars and `index`, one table of torch functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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

Function: TypeAlias = "Callable[..., Any]"
"""Of the operands' values: tensors, and integers where the type is `index`."""
Maker: TypeAlias = "Callable[[Any], Function]"
"""Makes the function of an operation, which looks at the operation's types and attributes once."""
Tensor = torch.Tensor


def apply_arithmetic(op: Operation, operands: Sequence[torch.Tensor | int]) -> torch.Tensor | int:
    """The result of an operation whose class is in `ARITHMETIC`: a tensor, or an integer where its type is `index`."""
    values = zip(op.operands, operands, strict=True)
    given = [value if isinstance(ssa.type, IndexType) else torch.as_tensor(value) for ssa, value in values]
    result: torch.Tensor | int = arithmetic(op)(*given)
    return result


def arithmetic(op: Operation) -> Function:
    """The function that an operation whose class is in `ARITHMETIC` computes."""
    operands = [isinstance(operand.type, IndexType) for operand in op.operands]
    if operands and operands[-1] and type(op) in _OF_INDICES:
        return _OF_INDICES[type(op)](op)
    function, gives_index = ARITHMETIC[type(op)](op), isinstance(op.results[0].type, IndexType)
    if not gives_index and not any(operands):
        return function

    def convert(*values: torch.Tensor | int) -> torch.Tensor | int:
        result: torch.Tensor = function(*map(torch.as_tensor, values))
        return int(result) if gives_index else result

    return convert


def computed(value: Tensor) -> Tensor:
    """8-bit floats as fp32, because torch has next to no arithmetic on them; all else unchanged."""
    return value.float() if value.dtype in _FLOAT8 else value


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _plain(function: Function) -> Maker:
    """Of operations that `function` computes from the operands alone."""

    def make(op: Operation) -> Function:
        dtypes = [_element(value.type) for value in (*op.operands, *op.results)]
        if not any(dtype in _FLOAT8 for dtype in dtypes):
            return function
        return lambda *operands: _narrowed(function(*map(computed, operands)), dtypes[-1])

    return make


def _narrowed(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if dtype in _FLOAT8 else value


def _element(kind: Attribute) -> torch.dtype:
    """The torch dtype of a tile's or scalar's type; `index` is int64."""
    element = kind.element_type if isinstance(kind, VectorType) else kind
    return torch_dtype(INT64 if isinstance(element, IndexType) else element)


def _constant(op: arith.ConstantOp) -> Function:
    value, dtype = op.value, _element(op.result.type)
    if isinstance(value, (IntegerAttr, FloatAttr)):
        constant = torch.tensor(value.value.data).to(dtype)
        return lambda: constant
    if not isinstance(value, DenseIntOrFPElementsAttr) or not isinstance(op.result.type, ShapedType):
        raise IRError(f"the interpreter does not know the constant {value}")
    # In double precision or int64 first: torch has no conversion of Python numbers to every narrow type.
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    elements = torch.tensor(list(value.get_values()), dtype=wide).reshape(op.result.type.get_shape()).to(dtype)
    return lambda: elements


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


def _cmpi(op: arith.CmpiOp) -> Function:
    return _CMPI[op.predicate.value.data]


_ORDERED: Sequence[Function] = (torch.eq, torch.gt, torch.ge, torch.lt, torch.le, torch.ne)


def _cmpf(op: arith.CmpfOp) -> Function:
    # Predicates in MLIR's order: false; oeq ogt oge olt ole one; ord; ueq ugt uge ult ule une; uno; true.
    predicate = op.predicate.value.data

    def compare(a: Tensor, b: Tensor) -> Tensor:
        a, b = computed(a), computed(b)
        unordered = a.isnan() | b.isnan()
        if predicate in (0, 15):
            return torch.full_like(unordered, predicate == 15)
        if predicate in (7, 14):
            return unordered if predicate == 14 else ~unordered
        compared: Tensor = _ORDERED[(predicate - 1) % 7](a, b)
        return compared | unordered if predicate > 7 else compared & ~unordered

    return compare


def _convert(op: Operation) -> Function:
    dtype = _element(op.results[0].type)
    return lambda value: value.to(dtype)


def _sign_extend(op: Operation) -> Function:
    dtype = _element(op.results[0].type)
    return lambda value: _signed(value).to(dtype)


def _zero_extend(op: Operation) -> Function:
    dtype = _element(op.results[0].type)

    def extend(value: Tensor) -> Tensor:
        if value.dtype == torch.bool:
            return value.to(dtype)
        if value.dtype == torch.int64:
            # Only conversion to floating point extends 64 bits further.
            return torch.where(value >= 0, value.to(dtype), (value.to(torch.float64) + 2.0**64).to(dtype))
        return (value.to(torch.int64) & ((1 << 8 * value.itemsize) - 1)).to(dtype)

    return extend


def _truncate(op: arith.TruncIOp) -> Function:
    dtype = _element(op.result.type)
    if dtype == torch.bool:
        return lambda value: (value & 1).to(dtype)  # the lowest bit, where torch would test for non-zero
    return lambda value: value.to(dtype)


def _bitcast(op: arith.BitcastOp) -> Function:
    dtype = _element(op.result.type)
    return lambda value: value.view(dtype)


def _quotient(op: Operation, a: Tensor, b: Tensor, rounding: str) -> Tensor:
    if bool((b == 0).any()):
        raise IRError(f"{op.name} by zero")
    return torch.div(a, b, rounding_mode=rounding)


def _divide(rounding: str) -> Maker:
    return lambda op: lambda a, b: _quotient(op, a, b, rounding)


def _divide_up(op: Operation) -> Function:
    return lambda a, b: -_quotient(op, -a, b, "floor")


def _remainder(op: Operation) -> Function:
    return lambda a, b: a - _quotient(op, a, b, "trunc") * b


def _modular(function: Function) -> Maker:
    """Of `function` on integers, where i1 counts modulo 2 (torch has no arithmetic on booleans)."""

    def modulo_2(a: Tensor, b: Tensor) -> Tensor:
        sums: Tensor = function(a.to(torch.int8), b.to(torch.int8)) & 1
        return sums.to(torch.bool)

    return lambda op: modulo_2 if _element(op.result.type) == torch.bool else function


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

_MAKERS: Mapping[type[Operation], Maker] = {
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

ARITHMETIC: Mapping[type[Operation], Maker] = {
    **{kind: _plain(function) for kind, function in _FUNCTIONS.items()},
    **_MAKERS,
}
"""What each operation class computes of operands that are tensors."""


def _word(value: int) -> int:
    """A number as a signed one of 64 bits."""
    return value if -(1 << 63) <= value < 1 << 63 else (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _on_words(function: Callable[[int, int], int]) -> Maker:
    return lambda op: lambda a, b: _word(function(a, b))


def _divided(function: Callable[[int, int], int]) -> Maker:
    def make(op: Operation) -> Function:
        def divide(a: int, b: int) -> int:
            if b == 0:
                raise IRError(f"{op.name} by zero")
            return _word(function(a, b))

        return divide

    return make


def _toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))


_TRUTH = torch.tensor(False), torch.tensor(True)
_OF_WORDS: Sequence[Callable[[int, int], bool]] = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(
        _on(lambda word: word % (1 << 64), function)
        for function in (operator.lt, operator.le, operator.gt, operator.ge)
    ),
)


def _compare_indices(op: arith.CmpiOp) -> Function:
    function = _OF_WORDS[op.predicate.value.data]
    return lambda a, b: _TRUTH[function(a, b)]


_OF_INDICES: Mapping[type[Operation], Maker] = {
    arith.AddiOp: _on_words(operator.add),
    arith.SubiOp: _on_words(operator.sub),
    arith.MuliOp: _on_words(operator.mul),
    arith.MaxSIOp: _on_words(max),
    arith.MinSIOp: _on_words(min),
    arith.DivSIOp: _divided(_toward_zero),
    arith.FloorDivSIOp: _divided(operator.floordiv),
    arith.CeilDivSIOp: _divided(lambda a, b: -(-a // b)),
    arith.RemSIOp: _divided(lambda a, b: a - _toward_zero(a, b) * b),
    arith.CmpiOp: _compare_indices,
    arith.SelectOp: lambda op: lambda condition, a, b: a if condition else b,
}
"""What is computed of numbers of `index`, which Python does faster than torch."""
