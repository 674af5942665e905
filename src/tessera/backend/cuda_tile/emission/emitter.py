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
from tessera.backend.cuda_tile.program.program import Builder, TileValue
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
    ElementType,
    TileType,
    Type,
)
from tessera.dtypes import dtype_of
from tessera.errors import CompileError
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.tile import operations as tile

Handler = Callable[["TileEmitter", Operation], None]
"""Writes one operation of the class that it stands under in a table."""

_ELEMENTS: Mapping[str, ElementType] = {
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


def element_of(kind: Attribute) -> ElementType:
    """The type of the elements of a tile, a buffer or a scalar. Raises CompileError for one that there is not."""
    element = getattr(kind, "element_type", kind)
    if isinstance(element, IndexType):
        return I64
    found = _ELEMENTS.get(DTYPE_NAMES.get(element, ""))
    if found is None:
        raise CompileError(f"CUDA Tile IR has no elements of {element}")
    return found


def is_unsigned(kind: Attribute) -> bool:
    """Whether elements are integers without negative numbers."""
    name = DTYPE_NAMES.get(getattr(kind, "element_type", kind))
    return name is not None and dtype_of(name).is_unsigned


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


class TileEmitter:
    """The cursor of one entry."""

    def __init__(self, name: str, parameters: Sequence[Type], handlers: Mapping[type[Operation], Handler]) -> None:
        self.build = Builder(name, parameters)
        self.handlers = handlers
        self._values: dict[SSAValue, TileValue] = {}

    # -- values -------------------------------------------------------------------------------------------------------

    def define(self, value: SSAValue, made: TileValue) -> None:
        """Says what `value` has become."""
        self._values[value] = made

    def get(self, value: SSAValue) -> TileValue:
        """What `value` has become. Raises CompileError for memory, which is read by loads only."""
        found = self._values.get(value)
        if found is None:
            raise CompileError(f"CUDA Tile IR cannot express this use of {value.type}")
        return found

    def type_of(self, value: SSAValue) -> TileType:
        """The type that `value` becomes."""
        return TileType(element_of(value.type), shape_of(value.type))

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

    def constant(self, number: float, kind: TileType) -> TileValue:
        """A number in all elements."""
        return self.build.one("constant", [], kind, value=number_bytes(number, kind.number))

    def index(self, number: int) -> TileValue:
        """A number as an index."""
        return self.constant(number, TileType(I64))

    def add(self, a: TileValue, b: TileValue) -> TileValue:
        """The sum of two tiles of one type."""
        return self.arithmetic("add", a, b)

    def arithmetic(self, name: str, a: TileValue, b: TileValue) -> TileValue:
        """The sum, difference or product ("add", "sub", "mul") of two tiles of one type, rounded to nearest."""
        if a.number.is_float:
            return self.build.one(f"{name}f", [a, b], a.type, rounding=Rounding.NEAREST_EVEN)
        return self.build.one(f"{name}i", [a, b], a.type, overflow=NO_OVERFLOW_FLAGS)

    def divided(self, a: TileValue, b: TileValue) -> TileValue:
        """The quotient of integers, toward zero."""
        return self.build.one("divi", [a, b], a.type, sign=SIGNED, rounding=Rounding.ZERO)

    def remainder(self, a: TileValue, b: TileValue) -> TileValue:
        """What such a division leaves."""
        return self.build.one("remi", [a, b], a.type, sign=SIGNED)

    def divided_up(self, a: TileValue, step: int) -> TileValue:
        """How many steps cover a natural number."""
        if step == 1:
            return a
        return self.divided(self.add(a, self.index(step - 1)), self.index(step))

    def at_most(self, a: TileValue, b: TileValue) -> TileValue:
        """The smaller of two indices."""
        return self.build.one("mini", [a, b], a.type, sign=SIGNED)

    def compared(self, predicate: Predicate, a: TileValue, b: TileValue) -> TileValue:
        """An i1 tile; floats are compared ordered but for "ne", integers as signed, false below true."""
        kind = a.tile.of(I1)
        if a.number.is_float:
            ordering = int(predicate is not Predicate.NE)
            return self.build.one("cmpf", [a, b], kind, predicate=predicate, ordering=ordering)
        sign = UNSIGNED if a.number == I1 else SIGNED
        return self.build.one("cmpi", [a, b], kind, predicate=predicate, sign=sign)

    def select(self, condition: TileValue, a: TileValue, b: TileValue) -> TileValue:
        """`condition ? a : b`, element by element."""
        return self.build.one("select", [condition, a, b], a.type)

    def both(self, a: TileValue | None, b: TileValue) -> TileValue:
        """The conjunction of masks; None is all."""
        return b if a is None else self.build.one("andi", [a, b], a.type)

    def reshape(self, value: TileValue, shape: Sequence[int]) -> TileValue:
        """The same elements in order, in another shape."""
        if value.tile.shape == tuple(shape):
            return value
        return self.build.one("reshape", [value], TileType(value.tile.element, tuple(shape)))

    def permute(self, value: TileValue, order: Sequence[int]) -> TileValue:
        """The dimensions in another order."""
        if list(order) == sorted(order):
            return value
        shape = tuple(value.tile.shape[dim] for dim in order)
        return self.build.one("permute", [value], TileType(value.tile.element, shape), order=tuple(order))

    def spread(self, value: TileValue, shape: Sequence[int]) -> TileValue:
        """A scalar, or a tile with extents of 1, over a shape."""
        if not value.tile.shape:
            value = self.reshape(value, [1] * len(shape))
        if value.tile.shape == tuple(shape):
            return value
        return self.build.one("broadcast", [value], TileType(value.tile.element, tuple(shape)))

    def lanes(self, size: int, axis: int, rank: int) -> TileValue:
        """0, 1, ... size - 1 as i64 along one of `rank` axes, 1 along the others."""
        numbers = self.build.one("iota", [], TileType(I64, (size,)))
        return self.reshape(numbers, [size if dim == axis else 1 for dim in range(rank)])

    def positions(self, start: TileValue, size: int, axis: int, rank: int) -> TileValue:
        """`start + lane` along an axis."""
        lanes = self.lanes(size, axis, rank)
        return self.add(lanes, self.spread(start, lanes.tile.shape))

    def converted(
        self, value: TileValue, element: ElementType, from_unsigned: bool = False, to_unsigned: bool = False
    ) -> TileValue:
        """Other elements, as torch's `to` converts: floats are rounded to nearest, and cut off to integers. CUDA Tile
        IR's integers have no sign of their own, so that it is said of both sides.
        """
        own, kind = value.number, value.tile.of(element)
        if own == element:
            return value
        if element == I1:
            return self.compared(Predicate.NE, value, self.constant(0, value.tile))
        if own.is_float and element.is_float:
            return self.build.one("ftof", [value], kind, rounding=Rounding.NEAREST_EVEN)
        if own.is_float:
            sign = UNSIGNED if to_unsigned else SIGNED
            return self.build.one("ftoi", [value], kind, sign=sign, rounding=Rounding.NEAREST_INT_TO_ZERO)
        sign = UNSIGNED if own == I1 or from_unsigned else SIGNED
        if element.is_float:
            return self.build.one("itof", [value], kind, sign=sign, rounding=Rounding.NEAREST_EVEN)
        if element.bits > own.bits:
            return self.build.one("exti", [value], kind, sign=sign)
        return self.build.one("trunci", [value], kind, overflow=NO_OVERFLOW_FLAGS)
