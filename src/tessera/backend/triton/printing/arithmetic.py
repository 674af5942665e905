"""`arith` and `math` as Triton expressions: one table from operation class to what is written for it.

Elementary functions take fp32 and fp64 only, so 16-bit elements are widened for them and rounded after. Division and
square root are the correctly rounded ones, as `arith.divf` and `math.sqrt` are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    VectorType,
)
from xdsl.ir import Operation, SSAValue

from tessera.backend.triton.printing.printer import Handler, Printer, Text, element_type, shape_of
from tessera.errors import CompileError

ALL_NAN = "propagate_nan=tl.PropagateNan.ALL"


def constant(p: Printer, op: arith.ConstantOp) -> None:
    """A literal where it stands for itself, else a full tile."""
    element, value = element_type(op.result), op.value
    if isinstance(value, (IntegerAttr, FloatAttr)):
        p.define(op.result, _number(element.literal(value.value.data)))
        return
    if not isinstance(value, DenseIntOrFPElementsAttr) or not value.is_splat():
        raise CompileError("constants in Triton have one value for all elements")
    (number, *_) = value.get_values()
    literal = element.literal(cast(float, number))
    text = f"tl.full({shape_of(op.result)}, {literal}, tl.{element.triton})"
    p.bind(op.result, text, literal=literal)


def _number(literal: str) -> Text:
    return Text(literal)


def operands(p: Printer, op: Operation, calls: bool) -> list[str]:
    """The operands of an elementwise operation as text, literals among them as plain numbers where Triton allows it.

    Beside a tile, Triton's operators take a number as one of the tile's type; its functions take it as fp32 or int32.
    At least one operand stays a tile.
    """
    values = list(op.operands)
    texts = [p.get(value) for value in values]
    plain = [text.literal is not None for text in texts]
    if all(plain):
        plain[0] = False
    allowed = not calls or element_type(values[-1]).takes_literals
    return [
        text.literal if is_plain and allowed and text.literal is not None else text.text if calls else text.operand
        for text, is_plain in zip(texts, plain, strict=True)
    ]


def _is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, VectorType)


def _operator(symbol: str, p: Printer, op: Operation) -> None:
    if _is_tile(op.results[0]):
        shape_of(op.results[0])
        if element_type(op.results[0]).kind == "bool":
            symbol = _MODULO_2.get(symbol, symbol)
    a, b = operands(p, op, calls=False)
    if not _is_tile(op.results[0]) and symbol in "+-" and b == "0":
        p.define(op.results[0], p.get(op.operands[0]))
        return
    p.bind(op.results[0], f"{a} {symbol} {b}")


_MODULO_2: Mapping[str, str] = {"+": "^", "-": "^", "*": "&"}
"""Arithmetic on i1 counts modulo 2."""


def _call(function: str, p: Printer, op: Operation, extra: Sequence[str] = ()) -> None:
    """A function of fp32 or fp64."""
    element = element_type(op.results[0])
    texts = operands(p, op, calls=True)
    if element.is_narrow:
        texts = [f"{text if text.isidentifier() else f'({text})'}.to(tl.float32)" for text in texts]
    text = f"{function}({', '.join([*texts, *extra])})"
    p.bind(op.results[0], f"{text}.to(tl.{element.triton})" if element.is_narrow else text)


def _divide(p: Printer, op: arith.DivfOp) -> None:
    if element_type(op.result).bits == 64:
        _operator("/", p, op)
    else:
        _call("tl.div_rn", p, op)


def _square_root(p: Printer, op: math.SqrtOp) -> None:
    _call("tl.sqrt" if element_type(op.result).bits == 64 else "tl.sqrt_rn", p, op)


def _negate(p: Printer, op: arith.NegfOp) -> None:
    # Triton's unary minus subtracts from zero, which loses the sign of zero.
    p.bind(op.result, f"{p.operand(op.operand)} * -1.0")


def _extreme(function: str, bitwise: str, p: Printer, op: Operation) -> None:
    """The larger or smaller of integers: of indices by Python's function, of signed bits (true is -1) by `bitwise`."""
    result = op.results[0]
    if not _is_tile(result):
        p.bind(result, f"{function[:3]}({p.text(op.operands[0])}, {p.text(op.operands[1])})")
    elif element_type(result).kind == "bool":
        _operator(bitwise, p, op)
    else:
        _call(f"tl.{function}", p, op)


_SIGNED = ("==", "!=", "<", "<=", ">", ">=")


def _compare(p: Printer, op: arith.CmpiOp) -> None:
    predicate = op.predicate.value.data
    if predicate >= len(_SIGNED):
        raise CompileError("the Triton backend compares signed integers only")
    p.bind(op.result, f"{p.operand(op.lhs)} {_SIGNED[predicate]} {p.operand(op.rhs)}")


def _select(p: Printer, op: arith.SelectOp) -> None:
    p.bind(op.result, f"tl.where({p.text(op.cond)}, {p.text(op.lhs)}, {p.text(op.rhs)})")


def convert(p: Printer, value: SSAValue, result: SSAValue) -> None:
    """A value in the element type of `result`; to i1 is a test for non-zero, as torch's `to` does it."""
    target = element_type(result).triton
    if target == "int1" and element_type(value).triton != "int1":
        p.bind(result, f"{p.operand(value)} != 0")
    elif element_type(value).triton == target:
        p.define(result, p.get(value))
    elif _is_tile(value):
        p.bind(result, f"{p.operand(value)}.to(tl.{target})")
    else:
        # Arguments that are 1 are Python numbers inside a kernel, and numbers have no method `to`.
        p.bind(result, f"tl.cast({p.text(value)}, tl.{target})")


def _convert(p: Printer, op: Operation) -> None:
    convert(p, op.operands[0], op.results[0])


def _bitcast(p: Printer, op: arith.BitcastOp) -> None:
    p.bind(op.result, f"{p.operand(op.input)}.to(tl.{element_type(op.result).triton}, bitcast=True)")


def _index_cast(p: Printer, op: arith.IndexCastOp) -> None:
    if isinstance(op.result.type, IndexType):
        p.define(op.result, p.get(op.input))
    else:
        p.bind(op.result, f"tl.cast({p.text(op.input)}, tl.{element_type(op.result).triton})")


_OPERATORS: Mapping[type[Operation], str] = {
    arith.AddfOp: "+",
    arith.SubfOp: "-",
    arith.MulfOp: "*",
    arith.AddiOp: "+",
    arith.SubiOp: "-",
    arith.MuliOp: "*",
    arith.DivSIOp: "//",
    arith.RemSIOp: "%",
    arith.AndIOp: "&",
    arith.OrIOp: "|",
    arith.XOrIOp: "^",
    arith.ShLIOp: "<<",
    arith.ShRSIOp: ">>",
}

_FUNCTIONS: Mapping[type[Operation], str] = {
    arith.MaxnumfOp: "tl.maximum",
    arith.MinnumfOp: "tl.minimum",
    math.AbsFOp: "tl.abs",
    math.AbsIOp: "tl.abs",
    math.ExpOp: "tl.exp",
    math.Exp2Op: "tl.exp2",
    math.LogOp: "tl.log",
    math.Log2Op: "tl.log2",
    math.RsqrtOp: "tl.rsqrt",
    math.ErfOp: "tl.erf",
    math.SinOp: "tl.sin",
    math.CosOp: "tl.cos",
    math.FloorOp: "tl.floor",
    math.CeilOp: "tl.ceil",
    math.FmaOp: "tl.fma",
    math.TanhOp: "libdevice.tanh",
    math.PowFOp: "libdevice.pow",
    math.ExpM1Op: "libdevice.expm1",
    math.Log10Op: "libdevice.log10",
    math.Log1pOp: "libdevice.log1p",
    math.TanOp: "libdevice.tan",
    math.TruncOp: "libdevice.trunc",
    math.RoundOp: "libdevice.round",
    math.RoundEvenOp: "libdevice.nearbyint",
    math.CopySignOp: "libdevice.copysign",
}

ARITHMETIC = cast(
    "Mapping[type[Operation], Handler]",
    {
        **{kind: partial(_operator, symbol) for kind, symbol in _OPERATORS.items()},
        **{kind: partial(_call, function) for kind, function in _FUNCTIONS.items()},
        arith.ConstantOp: constant,
        arith.DivfOp: _divide,
        arith.NegfOp: _negate,
        arith.MaximumfOp: partial(_call, "tl.maximum", extra=(ALL_NAN,)),
        arith.MinimumfOp: partial(_call, "tl.minimum", extra=(ALL_NAN,)),
        arith.MaxSIOp: partial(_extreme, "maximum", "&"),
        arith.MinSIOp: partial(_extreme, "minimum", "|"),
        arith.CmpiOp: _compare,
        arith.SelectOp: _select,
        arith.IndexCastOp: _index_cast,
        arith.ExtFOp: _convert,
        arith.TruncFOp: _convert,
        arith.SIToFPOp: _convert,
        arith.BitcastOp: _bitcast,
        arith.FPToSIOp: _convert,
        math.SqrtOp: _square_root,
    },
)
"""What is written for each operation; all are pure."""
