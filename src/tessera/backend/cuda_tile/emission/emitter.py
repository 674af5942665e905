"""Writing a kernel as a program of CUDA Tile IR: which value of Tile IR has become which, and what all handlers share.

Indices are scalars of i64, so that offsets into large tensors fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, VectorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.backend.cuda_tile.program.bytecode import number_bytes
from tessera.backend.cuda_tile.program.operations import NO_OVERFLOW_FLAGS, SIGNED, UNSIGNED, Predicate, Rounding
from tessera.backend.cuda_tile.program.program import Builder, Value
from tessera.backend.cuda_tile.program.types import (
    BF16,
    F8E4M3FN,
    F8E5M2,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    TF32,
    Element,
    Tile,
    Type,
)
from tessera.errors import CompileError
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.tile import operations as tile

Handler = Callable[["Emitter", Operation], None]
"""Writes one operation of the class that it stands under in a table."""

_ELEMENTS: Mapping[str, Element] = {
    "fp64": F64,
    "fp32": F32,
    "tf32": TF32,
    "bf16": BF16,
    "fp16": F16,
    "fp8_e4m3": F8E4M3FN,
    "fp8_e5m2": F8E5M2,
    "int64": I64,
    "int32": I32,
    "int16": I16,
    "int8": I8,
    "uint8": I8,
    "bool": I1,
}


def element_of(kind: Attribute) -> Element:
    """The type of the elements of a tile, a buffer or a scalar. Raises CompileError for one that there is not."""
    element = getattr(kind, "element_type", kind)
    if isinstance(element, IndexType):
        return I64
    found = _ELEMENTS.get(DTYPE_NAMES.get(element, ""))
    if found is None:
        raise CompileError(f"CUDA Tile IR has no elements of {element}")
    return found


def shape_of(kind: Attribute) -> tuple[int, ...]:
    """The shape of a tile, () of a scalar. Raises CompileError for extents that are no powers of two."""
    if not isinstance(kind, VectorType):
        return ()
    shape = tuple(kind.get_shape())
    if any(extent & (extent - 1) or extent < 1 for extent in shape):
        raise CompileError(
            f"a tile of {'x'.join(map(str, shape))}: tiles of CUDA Tile IR have extents that are powers of two",
            hints=["choose a schedule whose tiles are powers of two"],
        )
    return shape


class Emitter:
    """The cursor of one entry."""

    def __init__(self, name: str, parameters: Sequence[Type], handlers: Mapping[type[Operation], Handler]) -> None:
        self.build = Builder(name, parameters)
        self.handlers = handlers
        self._values: dict[SSAValue, Value] = {}

    # -- values -------------------------------------------------------------------------------------------------------

    def define(self, value: SSAValue, made: Value) -> None:
        """Says what `value` has become."""
        self._values[value] = made

    def get(self, value: SSAValue) -> Value:
        """What `value` has become. Raises CompileError for memory, which is read by loads only."""
        found = self._values.get(value)
        if found is None:
            raise CompileError(f"CUDA Tile IR cannot express this use of {value.type}")
        return found

    def type_of(self, value: SSAValue) -> Tile:
        """The type that `value` becomes."""
        return Tile(element_of(value.type), shape_of(value.type))

    # -- operations ---------------------------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Writes the operations of a block; what it yields is its parent's business."""
        for op in block.ops:
            if not isinstance(op, (tile.YieldOp, scf.YieldOp)):
                handler = self.handlers.get(type(op))
                if handler is None:
                    raise CompileError(f"CUDA Tile IR has nothing for {op.name}")
                handler(self, op)

    # -- what many handlers write -------------------------------------------------------------------------------------

    def constant(self, number: float, kind: Tile) -> Value:
        """A number in all elements."""
        return self.build.one("constant", [], kind, value=number_bytes(number, kind.number))

    def index(self, number: int) -> Value:
        """A number as an index."""
        return self.constant(number, Tile(I64))

    def add(self, a: Value, b: Value) -> Value:
        """The sum of two tiles of one type."""
        return self.arithmetic("add", a, b)

    def arithmetic(self, name: str, a: Value, b: Value) -> Value:
        """The sum, difference or product ("add", "sub", "mul") of two tiles of one type, rounded to nearest."""
        if a.number.is_float:
            return self.build.one(f"{name}f", [a, b], a.type, rounding=Rounding.NEAREST_EVEN)
        return self.build.one(f"{name}i", [a, b], a.type, overflow=NO_OVERFLOW_FLAGS)

    def divided(self, a: Value, b: Value) -> Value:
        """The quotient of integers, toward zero."""
        return self.build.one("divi", [a, b], a.type, sign=SIGNED, rounding=Rounding.ZERO)

    def remainder(self, a: Value, b: Value) -> Value:
        """What such a division leaves."""
        return self.build.one("remi", [a, b], a.type, sign=SIGNED)

    def divided_up(self, a: Value, step: int) -> Value:
        """How many steps cover a natural number."""
        if step == 1:
            return a
        return self.divided(self.add(a, self.index(step - 1)), self.index(step))

    def at_most(self, a: Value, b: Value) -> Value:
        """The smaller of two indices."""
        return self.build.one("mini", [a, b], a.type, sign=SIGNED)

    def compared(self, predicate: Predicate, a: Value, b: Value) -> Value:
        """An i1 tile; floats are compared ordered but for "ne", integers as signed, false below true."""
        kind = a.tile.of(I1)
        if a.number.is_float:
            ordering = int(predicate is not Predicate.NE)
            return self.build.one("cmpf", [a, b], kind, predicate=predicate, ordering=ordering)
        sign = UNSIGNED if a.number == I1 else SIGNED
        return self.build.one("cmpi", [a, b], kind, predicate=predicate, sign=sign)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`condition ? a : b`, element by element."""
        return self.build.one("select", [condition, a, b], a.type)

    def both(self, a: Value | None, b: Value) -> Value:
        """The conjunction of masks; None is all."""
        return b if a is None else self.build.one("andi", [a, b], a.type)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The same elements in order, in another shape."""
        if value.tile.shape == tuple(shape):
            return value
        return self.build.one("reshape", [value], Tile(value.tile.element, tuple(shape)))

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """The dimensions in another order."""
        if list(order) == sorted(order):
            return value
        shape = tuple(value.tile.shape[dim] for dim in order)
        return self.build.one("permute", [value], Tile(value.tile.element, shape), order=tuple(order))

    def spread(self, value: Value, shape: Sequence[int]) -> Value:
        """A scalar, or a tile with extents of 1, over a shape."""
        if not value.tile.shape:
            value = self.reshape(value, [1] * len(shape))
        if value.tile.shape == tuple(shape):
            return value
        return self.build.one("broadcast", [value], Tile(value.tile.element, tuple(shape)))

    def lanes(self, size: int, axis: int, rank: int) -> Value:
        """0, 1, ... size - 1 as i64 along one of `rank` axes, 1 along the others."""
        numbers = self.build.one("iota", [], Tile(I64, (size,)))
        return self.reshape(numbers, [size if dim == axis else 1 for dim in range(rank)])

    def positions(self, start: Value, size: int, axis: int, rank: int) -> Value:
        """`start + lane` along an axis."""
        lanes = self.lanes(size, axis, rank)
        return self.add(lanes, self.spread(start, lanes.tile.shape))

    def converted(self, value: Value, element: Element) -> Value:
        """Other elements, as torch's `to` converts: floats are rounded to nearest, and cut off to integers."""
        own, kind = value.number, value.tile.of(element)
        if own == element:
            return value
        if element == I1:
            return self.compared(Predicate.NE, value, self.constant(0, value.tile))
        if own.is_float and element.is_float:
            return self.build.one("ftof", [value], kind, rounding=Rounding.NEAREST_EVEN)
        if own.is_float:
            return self.build.one("ftoi", [value], kind, sign=SIGNED, rounding=Rounding.NEAREST_INT_TO_ZERO)
        sign = UNSIGNED if own == I1 else SIGNED
        if element.is_float:
            return self.build.one("itof", [value], kind, sign=sign, rounding=Rounding.NEAREST_EVEN)
        if element.bits > own.bits:
            return self.build.one("exti", [value], kind, sign=sign)
        return self.build.one("trunci", [value], kind, overflow=NO_OVERFLOW_FLAGS)
