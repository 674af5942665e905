"""`arith`, and of `math` what is an instruction: on indices while writing, on tiles and scalars part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IndexType, IntegerAttr
from xdsl.ir import Operation

from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.indices import INDEX_ARITHMETIC, INTEGER_PREDICATES, compare_indices
from tessera.backend.llvm.emission.literals import literal
from tessera.backend.llvm.emission.values import (
    I1,
    I64,
    NARROW,
    Element,
    IndexValue,
    Tile,
    Value,
    constant_index,
    element_of,
    shape_of,
    vector_type,
)
from tessera.backend.llvm.matrix import tiles as matrix_tiles
from tessera.backend.llvm.tiles.conversion import FLOAT_NAMES, computed_in, convert, convert_part, each_part
from tessera.errors import CompileError

# -- constants, casts, comparisons ------------------------------------------------------------------------------------


def _constant(generator: Generator, op: arith.ConstantOp) -> Sequence[Value]:
    value, kind = op.value, op.result.type
    if isinstance(kind, IndexType):
        assert isinstance(value, IntegerAttr)
        return (constant_index(value.value.data),)
    if op.result in generator.in_unit and (zeros := matrix_tiles.constant(generator, op)) is not None:
        return (zeros,)
    element, (rows, columns) = element_of(kind), shape_of(kind)
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return (Tile(element, 1, ((literal(element, value.value.data),),)),)
    if not isinstance(value, DenseIntOrFPElementsAttr):
        raise CompileError(f"the LLVM backend has no code for the constant {value}")
    numbers = [literal(element, number) for number in cast("Sequence[float]", value.get_values())]
    if len(numbers) == 1 or value.is_splat():
        row = tuple(generator.emitter.splat(element.llvm, numbers[0], lanes) for lanes in generator.widths(columns))
        return (Tile(element, columns, (row,) * rows),)
    lines = []
    for start in range(0, rows * columns, columns):
        parts, position = [], start
        for lanes in generator.widths(columns):
            parts.append(_vector_constant(element, numbers[position : position + lanes]))
            position += lanes
        lines.append(tuple(parts))
    return (Tile(element, columns, tuple(lines)),)


def _vector_constant(element: Element, numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    return "<" + ", ".join(f"{element.llvm} {number}" for number in numbers) + ">"


def _index_cast(generator: Generator, op: arith.IndexCastOp) -> Sequence[Value]:
    if isinstance(op.input.type, IndexType):
        operand = generator.emitter.operand(generator.index(op.input))
        number = Tile(I64, 1, ((operand,),))
        return (convert(generator, number, element_of(op.result.type)),)
    number = convert(generator, generator.tile(op.input), I64)
    return (IndexValue(number.rows[0][0]),)


def _convert(generator: Generator, op: Operation) -> Sequence[Value]:
    return (convert(generator, generator.tile(op.operands[0]), element_of(op.results[0].type)),)


def _convert_bits(instruction: str) -> Handler:
    """Conversions of integers that torch's `to` does not make: i1 as a sign, as a lowest bit, and unsigned numbers."""

    def handle(generator: Generator, op: Operation) -> Sequence[Value]:
        value, element = generator.tile(op.operands[0]), element_of(op.results[0].type)
        wide = computed_in(element)

        def make(lanes: int, part: str) -> str:
            kinds = f"{vector_type(value.element.llvm, lanes)} {part} to {vector_type(wide.llvm, lanes)}"
            return convert_part(generator, generator.emitter.emit(f"{instruction} {kinds}"), lanes, wide, element)

        return (each_part(generator, element, [value], make),)

    return handle


def _bitcast(generator: Generator, op: arith.BitcastOp) -> Sequence[Value]:
    value, element = generator.tile(op.input), element_of(op.result.type)
    if value.element.size != element.size or I1 in (value.element, element):
        raise CompileError(f"arith.bitcast from {value.element.name} to {element.name}")

    def make(lanes: int, part: str) -> str:
        if value.element.llvm == element.llvm:
            return part
        kinds = f"{vector_type(value.element.llvm, lanes)} {part} to {vector_type(element.llvm, lanes)}"
        return generator.emitter.emit(f"bitcast {kinds}")

    return (each_part(generator, element, [value], make),)


_CMPF = (
    *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
)


def compare(generator: Generator, a: Tile, b: Tile, instruction: str) -> Tile:
    """The i1 tile of `icmp ...` or `fcmp ...`, element by element."""
    element = computed_in(a.element)
    a, b = convert(generator, a, element), convert(generator, b, element)

    def make(lanes: int, x: str, y: str) -> str:
        return generator.emitter.emit(f"{instruction} {vector_type(element.llvm, lanes)} {x}, {y}")

    return each_part(generator, I1, [a, b], make)


def _cmpi(generator: Generator, op: arith.CmpiOp) -> Sequence[Value]:
    predicate = op.predicate.value.data
    if isinstance(op.lhs.type, IndexType):
        a, b = generator.index(op.lhs), generator.index(op.rhs)
        return (Tile(I1, 1, ((compare_indices(generator.emitter, a, b, predicate),),)),)
    instruction = f"icmp {INTEGER_PREDICATES[predicate]}"
    return (compare(generator, generator.tile(op.lhs), generator.tile(op.rhs), instruction),)


def _cmpf(generator: Generator, op: arith.CmpfOp) -> Sequence[Value]:
    instruction = f"fcmp {_CMPF[op.predicate.value.data]}"
    return (compare(generator, generator.tile(op.lhs), generator.tile(op.rhs), instruction),)


def select(generator: Generator, condition: Tile, a: Tile, b: Tile) -> Tile:
    """`condition ? a : b`, element by element."""

    def make(lanes: int, c: str, x: str, y: str) -> str:
        kind = vector_type(a.element.llvm, lanes)
        return generator.emitter.emit(f"select {vector_type('i1', lanes)} {c}, {kind} {x}, {kind} {y}")

    return each_part(generator, a.element, [condition, a, b], make)


def _select(generator: Generator, op: arith.SelectOp) -> Sequence[Value]:
    emitter, condition = generator.emitter, generator.scalar(op.cond)
    if isinstance(op.result.type, IndexType):
        a, b = generator.index(op.lhs), generator.index(op.rhs)
        text = f"select i1 {condition}, i64 {emitter.operand(a)}, i64 {emitter.operand(b)}"
        return (IndexValue(emitter.pure(text), 0, a.natural and b.natural),)
    x, y = generator.tile(op.lhs), generator.tile(op.rhs)
    row = tuple(emitter.splat("i1", condition, lanes) for lanes in generator.widths(x.columns))
    return (select(generator, Tile(I1, x.columns, (row,) * len(x.rows)), x, y),)


# -- element by element -----------------------------------------------------------------------------------------------

Maker = Callable[[Generator, Element, int, Sequence[str]], str]
"""What writes one part of a result: given the element type, the number of lanes and the operands."""


def binary(instruction: str) -> Maker:
    """An instruction of two operands."""

    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        return generator.emitter.emit(f"{instruction} {vector_type(element.llvm, lanes)} {', '.join(operands)}")

    return make


def intrinsic(name: str, flags: str = "", extra: tuple[str, str] | None = None) -> Maker:
    """A call of `llvm.NAME` of the part's type; `extra` is a last argument as (type, operand)."""

    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        kind = vector_type(element.llvm, lanes)
        suffix = FLOAT_NAMES.get(element, element.llvm)
        function = f"@llvm.{name}.{suffix if lanes == 1 else f'v{lanes}{suffix}'}"
        arguments = [(kind, operand) for operand in operands] + ([extra] if extra else [])
        call = generator.emitter.call(kind, function, *arguments)
        return generator.emitter.emit(call.replace("call ", f"call {flags} ", 1) if flags else call)

    return make


def _negate(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
    return generator.emitter.emit(f"fneg {vector_type(element.llvm, lanes)} {operands[0]}")


def _on_booleans(instruction: str, otherwise: Maker) -> Maker:
    """A logical instruction on i1, `otherwise` on wider integers."""
    logical = binary(instruction)

    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        return (logical if element is I1 else otherwise)(generator, element, lanes, operands)

    return make


def apply(generator: Generator, make: Maker, operands: Sequence[Tile]) -> Tile:
    """`make` on every part; narrow floats are widened, computed in fp32 and rounded once."""
    element = operands[0].element
    wide = computed_in(element)
    widened = [convert(generator, operand, wide) if operand.element in NARROW else operand for operand in operands]
    result = each_part(generator, wide, widened, lambda lanes, *parts: make(generator, wide, lanes, parts))
    return convert(generator, result, element)


# maximum and minimum give NaN where either operand is one, and leave open which zero is the larger, as torch does.
MAXIMUM, MINIMUM = intrinsic("maximum", "nsz"), intrinsic("minimum", "nsz")
SIGNED_MAXIMUM = _on_booleans("and", intrinsic("smax"))
SIGNED_MINIMUM = _on_booleans("or", intrinsic("smin"))

ELEMENTWISE: dict[type[Operation], Maker] = {
    arith.AddfOp: binary("fadd"),
    arith.SubfOp: binary("fsub"),
    arith.MulfOp: binary("fmul"),
    arith.DivfOp: binary("fdiv"),
    arith.NegfOp: _negate,
    arith.MaximumfOp: MAXIMUM,
    arith.MinimumfOp: MINIMUM,
    arith.MaxnumfOp: intrinsic("maxnum"),
    arith.MinnumfOp: intrinsic("minnum"),
    arith.AddiOp: binary("add"),
    arith.SubiOp: binary("sub"),
    arith.MuliOp: binary("mul"),
    arith.DivSIOp: binary("sdiv"),
    arith.DivUIOp: binary("udiv"),
    arith.RemSIOp: binary("srem"),
    arith.RemUIOp: binary("urem"),
    arith.AndIOp: binary("and"),
    arith.OrIOp: binary("or"),
    arith.XOrIOp: binary("xor"),
    arith.ShLIOp: binary("shl"),
    arith.ShRSIOp: binary("ashr"),
    arith.ShRUIOp: binary("lshr"),
    arith.MaxSIOp: SIGNED_MAXIMUM,
    arith.MinSIOp: SIGNED_MINIMUM,
    arith.MaxUIOp: _on_booleans("or", intrinsic("umax")),
    arith.MinUIOp: _on_booleans("and", intrinsic("umin")),
    math.AbsFOp: intrinsic("fabs"),
    math.AbsIOp: intrinsic("abs", extra=("i1", "false")),
    math.FloorOp: intrinsic("floor"),
    math.CeilOp: intrinsic("ceil"),
    math.TruncOp: intrinsic("trunc"),
    math.RoundEvenOp: intrinsic("roundeven"),
    math.RoundOp: intrinsic("round"),
    math.CopySignOp: intrinsic("copysign"),
    math.FmaOp: intrinsic("fma"),
}
"""What computes each operation class element by element."""


def _elementwise(make: Maker) -> Handler:
    def handle(generator: Generator, op: Operation) -> Sequence[Value]:
        if isinstance(op.results[0].type, IndexType):
            return _on_index(generator, op)
        return (apply(generator, make, [generator.tile(operand) for operand in op.operands]),)

    return handle


def _on_index(generator: Generator, op: Operation) -> Sequence[Value]:
    compute = INDEX_ARITHMETIC.get(type(op))
    if compute is None or not isinstance(op.results[0].type, IndexType):
        raise CompileError(f"the LLVM backend has no code for {op.name} on {op.results[0].type}")
    a, b = op.operands
    return (compute(generator.emitter, generator.index(a), generator.index(b)),)


ARITHMETIC = cast(
    "dict[type[Operation], Handler]",
    {
        **{kind: _elementwise(make) for kind, make in ELEMENTWISE.items()},
        arith.FloorDivSIOp: _on_index,
        arith.CeilDivSIOp: _on_index,
        arith.ConstantOp: _constant,
        arith.IndexCastOp: _index_cast,
        arith.ExtFOp: _convert,
        arith.TruncFOp: _convert,
        arith.FPToSIOp: _convert,
        arith.SIToFPOp: _convert_bits("sitofp"),
        arith.UIToFPOp: _convert_bits("uitofp"),
        arith.ExtSIOp: _convert_bits("sext"),
        arith.ExtUIOp: _convert_bits("zext"),
        arith.TruncIOp: _convert_bits("trunc"),
        arith.BitcastOp: _bitcast,
        arith.CmpiOp: _cmpi,
        arith.CmpfOp: _cmpf,
        arith.SelectOp: _select,
    },
)
"""The handler of each operation class."""
