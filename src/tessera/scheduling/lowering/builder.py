"""Building Tile IR: a cursor over nested blocks; each value is placed in the outermost loop that can hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import torch
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    UnitAttr,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tessera.dtypes import DType, fp64
from tessera.ir.tile import operations as tile
from tessera.scheduling.lowering.attributes import element_type, flags_attribute, integers_attribute

INDEX = IndexType()

_MOST: Final = torch.finfo(torch.float32).max


@dataclass
class Loop:
    """A loop under construction: its induction variable, carried values, and afterwards its results."""

    index: SSAValue
    carried: tuple[SSAValue, ...]
    yielded: tuple[SSAValue, ...] = ()
    results: tuple[SSAValue, ...] = ()


class TileBuilder:
    """Appends operations to the innermost open block.

    A nested operation enters its parent block only when its body is complete, so that anything appended to an outer
    block meanwhile stands before it: hoisting is appending further out.
    """

    def __init__(self, block: Block) -> None:
        self.entry = block
        self.blocks = [block]
        self._indices: dict[int, SSAValue] = {}

    # -- plumbing -------------------------------------------------------------------------------------------------

    def append(self, operation: Operation, depth: int = -1) -> SSAValue:
        """Appends to the block at `depth` (the innermost by default); gives the first result."""
        self.blocks[depth].add_op(operation)
        return operation.results[0]

    def attach(self, operation: Operation) -> None:
        """Appends an operation without results, or whose results the caller reads, to the innermost block."""
        self.blocks[-1].add_op(operation)

    @contextmanager
    def open(self, block: Block) -> Iterator[None]:
        """Appends go to `block` inside the `with`."""
        self.blocks.append(block)
        try:
            yield
        finally:
            self.blocks.pop()

    # -- index arithmetic -----------------------------------------------------------------------------------------

    def index(self, value: int) -> SSAValue:
        """An index constant, made once, at the top of the kernel."""
        if value not in self._indices:
            constant = arith.ConstantOp(IntegerAttr(value, INDEX))
            first = self.entry.first_op
            if first is None:
                self.entry.add_op(constant)
            else:
                self.entry.insert_op_before(constant, first)
            self._indices[value] = constant.result
        return self._indices[value]

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        zero = self._indices.get(0)
        if a is zero:
            return b
        return a if b is zero else self.append(arith.AddiOp(a, b))

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return a if b is self._indices.get(0) else self.append(arith.SubiOp(a, b))

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.append(arith.MuliOp(a, b))

    def minimum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.append(arith.MinSIOp(a, b))

    def maximum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.append(arith.MaxSIOp(a, b))

    def both(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """Whether two conditions hold."""
        return self.append(arith.AndIOp(a, b))

    def floor_div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a / b` of indices that are not negative, rounded down."""
        return self.truncated_div(a, b)

    def truncated_div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a / b` of any indices, rounded towards zero."""
        return self.append(arith.DivSIOp(a, b))

    def compare(self, a: SSAValue, b: SSAValue, kind: str) -> SSAValue:
        return self.append(arith.CmpiOp(a, b, kind))

    def extent(self, buffer: SSAValue, dimension: int) -> SSAValue:
        return self.append(memref.DimOp(buffer, self.index(dimension)))

    # -- control --------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        lower: SSAValue,
        upper: SSAValue,
        step: int,
        initial: Sequence[SSAValue] = (),
        unroll: int = 1,
        warp_specialize: bool = False,
        macro_tile: bool = False,
    ) -> Iterator[Loop]:
        """A counted loop; set `loop.yielded` inside when there are carried values, read `loop.results` after."""
        types = [value.type for value in initial]
        body = Block(arg_types=[INDEX, *types])
        state = Loop(body.args[0], tuple(body.args[1:]))
        with self.open(body):
            yield state
            self.attach(tile.YieldOp.create(operands=state.yielded))
        attributes: dict[str, Attribute] = {"step": IntegerAttr(step, i64)}
        if unroll > 1:
            attributes["unroll"] = IntegerAttr(unroll, i64)
        if warp_specialize:
            attributes["warp_specialize"] = UnitAttr()
        if macro_tile:
            attributes["macro_tile"] = UnitAttr()
        operation = tile.ForOp.create(
            operands=[lower, upper, *initial], result_types=types, attributes=attributes, regions=[Region(body)]
        )
        self.attach(operation)
        state.results = tuple(operation.results)

    @contextmanager
    def parallel(
        self,
        extents: Sequence[SSAValue],
        steps: Sequence[int],
        split: int,
        group: int = 1,
        grid: str | None = None,
        warp_specialize: bool = False,
    ) -> Iterator[list[tuple[SSAValue, SSAValue]]]:
        """The worker grid: yields `(lower, upper)` of this worker's share for each dimension."""
        body = Block(arg_types=[INDEX] * (2 * len(extents)))
        with self.open(body):
            yield [(body.args[2 * i], body.args[2 * i + 1]) for i in range(len(extents))]
        attributes: dict[str, Attribute] = {"steps": integers_attribute(steps), "split": IntegerAttr(split, i64)}
        if group > 1:
            attributes["group"] = IntegerAttr(group, i64)
        if grid is not None:
            attributes["grid"] = StringAttr(grid)
        if warp_specialize:
            attributes["warp_specialize"] = UnitAttr()
        self.attach(tile.ParallelOp.create(operands=list(extents), attributes=attributes, regions=[Region(body)]))

    def branch(
        self,
        condition: SSAValue,
        then: Callable[[], Sequence[SSAValue]],
        otherwise: Callable[[], Sequence[SSAValue]] | None = None,
    ) -> tuple[SSAValue, ...]:
        """`scf.if`: both arms give the same types; without `otherwise` nothing results."""
        regions = []
        types: list[Attribute] = []
        for arm in (then, otherwise):
            if arm is None:
                regions.append(Region())
                continue
            block = Block()
            with self.open(block):
                values = list(arm())
                types = [value.type for value in values]
                self.attach(scf.YieldOp(*values))
            regions.append(Region(block))
        operation = scf.IfOp(condition, types, regions[0], regions[1])
        self.attach(operation)
        return tuple(operation.results)

    # -- memory ---------------------------------------------------------------------------------------------------

    def load(
        self,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        dims: Sequence[int],
        shape: Sequence[int],
        in_bounds: Sequence[bool],
        fill: Attribute | None = None,
        any_outside: bool = False,
        depth: int = -1,
        hints: Mapping[str, str] = MappingProxyType({}),
        steps: Sequence[int] = (),
    ) -> SSAValue:
        """Reads a tile; `hints` are `access` and `eviction` as Tile IR has them, `steps` are 1 by default."""
        assert isinstance(buffer.type, MemRefType)
        attributes: dict[str, Attribute] = {"dims": integers_attribute(dims), "in_bounds": flags_attribute(in_bounds)}
        attributes |= {hint: StringAttr(value) for hint, value in hints.items()}
        if fill is not None:
            attributes["fill"] = fill
        if any_outside:
            attributes["oob"] = StringAttr("any")
        if any(step != 1 for step in steps):
            attributes["steps"] = integers_attribute(steps)
        return self.append(
            tile.LoadOp.create(
                operands=[buffer, *indices],
                result_types=[VectorType(buffer.type.element_type, list(shape))],
                attributes=attributes,
            ),
            depth,
        )

    def store(
        self,
        value: SSAValue,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        dims: Sequence[int],
        in_bounds: Sequence[bool],
        nontemporal: bool = False,
        hints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Writes a tile; `hints` are `access` and `eviction` as Tile IR has them."""
        attributes: dict[str, Attribute] = {"dims": integers_attribute(dims), "in_bounds": flags_attribute(in_bounds)}
        attributes |= {hint: StringAttr(value) for hint, value in hints.items()}
        if nontemporal:
            attributes["nontemporal"] = UnitAttr()
        self.attach(tile.StoreOp.create(operands=[value, buffer, *indices], attributes=attributes))

    @contextmanager
    def stage(
        self,
        extents: tuple[SSAValue, SSAValue],
        layout: str,
        level: str,
        maximum: tuple[int, int],
        result: MemRefType[Attribute],
    ) -> Iterator[Stage]:
        """A staged copy; set `stage.tile` inside, read `stage.buffer` after."""
        body = Block(arg_types=[INDEX, INDEX])
        state = Stage(body.args[0], body.args[1])
        with self.open(body):
            yield state
            assert state.tile is not None
            self.attach(tile.YieldOp.create(operands=[state.tile]))
        state.buffer = self.append(
            tile.StageOp.create(
                operands=list(extents),
                result_types=[result],
                attributes={
                    "level": StringAttr(level),
                    "layout": StringAttr(layout),
                    "maximum": integers_attribute(maximum),
                },
                regions=[Region(body)],
            )
        )

    def alloc(self, kind: MemRefType[Attribute], level: str) -> SSAValue:
        """Scratch memory of static shape, made at the top of the kernel."""
        operation = tile.AllocOp.create(result_types=[kind], attributes={"level": StringAttr(level)})
        return self.append(operation, 0)

    def prefetch(self, buffer: SSAValue, indices: Sequence[SSAValue], rows: int, columns: int, write: bool) -> None:
        attributes: dict[str, Attribute] = {"rows": IntegerAttr(rows, i64), "columns": IntegerAttr(columns, i64)}
        if write:
            attributes["write"] = UnitAttr()
        self.attach(tile.PrefetchOp.create(operands=[buffer, *indices], attributes=attributes))

    # -- tiles ----------------------------------------------------------------------------------------------------

    def splat(self, value: float | int | bool, dtype: DType, shape: Sequence[int], depth: int = -1) -> SSAValue:
        """A constant tile."""
        element = element_type(dtype)
        if isinstance(element, IntegerType):
            integers = DenseIntOrFPElementsAttr.from_list(VectorType(element, list(shape)), [int(value)])
            return self.append(arith.ConstantOp(integers), depth)
        number = float(value)
        if dtype is not fp64 and abs(number) > _MOST:  # a limit of fp64, say
            number = math.copysign(math.inf, number)
        floats = DenseIntOrFPElementsAttr.from_list(VectorType(element, list(shape)), [number])
        return self.append(arith.ConstantOp(floats), depth)

    def mask(self, position: SSAValue, limit: SSAValue, shape: Sequence[int], axis: int) -> SSAValue:
        """An i1 tile: which lanes along `axis` lie before `limit`."""
        return self.append(
            tile.MaskOp.create(
                operands=[position, limit],
                result_types=[VectorType(i1, list(shape))],
                attributes={"axis": IntegerAttr(axis, i64)},
            )
        )

    def mma(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue,
        m: int,
        n: int,
        k: int,
        dtype: DType,
        unsigned_a: bool = False,
        matrix_unit: bool = False,
    ) -> SSAValue:
        """`acc + a @ b`; with `unsigned_a` the bytes of `a` stand for 0 to 255, `matrix_unit` asks for the CPU's."""
        wanted = {"unsigned_a": unsigned_a, "matrix_unit": matrix_unit}
        flags: dict[str, Attribute] = {name: UnitAttr() for name, is_set in wanted.items() if is_set}
        return self.append(
            tile.MmaOp.create(
                operands=[a, b, acc],
                result_types=[acc.type],
                attributes={
                    "m": IntegerAttr(m, i64),
                    "n": IntegerAttr(n, i64),
                    "k": IntegerAttr(k, i64),
                    "dtype": StringAttr(dtype.name),
                    **flags,
                },
            )
        )

    def split(self, value: SSAValue, axis: int) -> tuple[SSAValue, SSAValue]:
        """The halves of a tile along `axis`."""
        assert isinstance(value.type, VectorType)
        shape = [size // 2 if dim == axis else size for dim, size in enumerate(value.type.get_shape())]
        half = VectorType(value.type.element_type, shape)
        operation = tile.SplitOp.create(
            operands=[value], result_types=[half, half], attributes={"axis": IntegerAttr(axis, i64)}
        )
        self.attach(operation)
        return operation.lower, operation.upper

    def transpose(self, value: SSAValue) -> SSAValue:
        """A matrix with rows and columns exchanged. CPUs have no code for it."""
        assert isinstance(value.type, VectorType)
        kind = VectorType(value.type.element_type, list(reversed(value.type.get_shape())))
        return self.append(tile.TransposeOp.create(operands=[value], result_types=[kind]))

    def element(self, value: SSAValue) -> SSAValue:
        """The one element of a tile."""
        assert isinstance(value.type, VectorType)
        return self.append(tile.ElementOp.create(operands=[value], result_types=[value.type.element_type]))

    def cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        """A tile in another dtype; the tile itself where it has it."""
        assert isinstance(value.type, VectorType)
        kind = VectorType(element_type(dtype), value.type.get_shape())
        if kind == value.type:
            return value
        return self.append(tile.CastOp.create(operands=[value], result_types=[kind]))

    def spread(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """A tile with its dimensions of size 1 repeated."""
        assert isinstance(value.type, VectorType)
        kind = VectorType(value.type.element_type, list(shape))
        return self.append(tile.BroadcastOp.create(operands=[value], result_types=[kind]))

    def reduce(self, value: SSAValue, kind: str, axis: int, any_nan: bool = False) -> SSAValue:
        """A reduction along an axis; with `any_nan` what `max` and `min` give of NaN is left open."""
        assert isinstance(value.type, VectorType)
        shape = [1 if dim == axis else size for dim, size in enumerate(value.type.get_shape())]
        attributes: dict[str, Attribute] = {"kind": StringAttr(kind), "axis": IntegerAttr(axis, i64)}
        if any_nan:
            attributes["nan"] = StringAttr("any")
        kind_of_result = VectorType(value.type.element_type, shape)
        return self.append(tile.ReduceOp.create(operands=[value], result_types=[kind_of_result], attributes=attributes))


@dataclass
class Stage:
    """A staged copy under construction: the tile's position, the tile to be yielded, and afterwards the buffer."""

    row: SSAValue
    column: SSAValue
    tile: SSAValue | None = None
    buffer: SSAValue = field(init=False)
