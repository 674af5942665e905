"""The walk over one kernel: the value that each SSA value stands for, and the handler of each operation class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from xdsl.ir import Block, Operation, SSAValue

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.tile_clock import TileClock
from tessera.backend.llvm.emission.values import (
    BufferValue,
    IndexValue,
    MatrixTile,
    PairTile,
    Streamed,
    Tile,
    Value,
    split_columns,
    vector_type,
)
from tessera.backend.llvm.matrix import amx
from tessera.errors import CompileError

_LINE_BYTES = 64

Handler: TypeAlias = "Callable[[Generator, Operation], Sequence[Value]]"


class Generator:
    """The state of code generation for one kernel; handlers are given it and the operation."""

    def __init__(
        self,
        emitter: FunctionEmitter,
        handlers: Mapping[type[Operation], Handler],
        in_unit: frozenset[SSAValue] = frozenset(),
    ) -> None:
        self.emitter = emitter
        self.handlers = handlers
        self.in_unit = in_unit  # values that live in the matrix unit
        self.workspace_bytes = 0
        self.streamed: list[Streamed] = []  # rows of neighbouring stores, to be stored past the caches
        self.tile_clock: TileClock | None = None  # in timed builds
        self.streams = False  # whether a store went past the caches, which a fence must follow
        self._bounce: tuple[int, int] | None = None  # offset, size
        self._values: dict[SSAValue, Value] = {}

    # -- values -------------------------------------------------------------------------------------------------------

    def value(self, ssa: SSAValue) -> Value:
        """What an SSA value stands for."""
        return self._values[ssa]

    def define(self, names: Sequence[SSAValue], values: Sequence[Value]) -> None:
        """Says what SSA values stand for."""
        self._values.update(zip(names, values, strict=True))

    def index(self, ssa: SSAValue) -> IndexValue:
        """An SSA value of type `index`."""
        value = self._values[ssa]
        assert isinstance(value, IndexValue)
        return value

    def buffer(self, ssa: SSAValue) -> BufferValue:
        """An SSA value of a memref type."""
        value = self._values[ssa]
        assert isinstance(value, BufferValue)
        return value

    def tile(self, ssa: SSAValue) -> Tile:
        """An SSA value of a vector or scalar type, row by row."""
        value = self._values[ssa]
        if isinstance(value, PairTile):
            return self.separate(value)
        if isinstance(value, MatrixTile):
            return self.from_unit(value)
        if isinstance(value, IndexValue):
            raise CompileError("an index stands where a tile or a number is meant; arith.index_cast makes one of it")
        assert isinstance(value, Tile)
        return value

    def scalar(self, ssa: SSAValue) -> str:
        """The operand of an SSA value of a scalar type."""
        return self.tile(ssa).rows[0][0]

    def widths(self, columns: int) -> tuple[int, ...]:
        """The lanes of the parts of a row."""
        return split_columns(columns, self.emitter.lanes)

    def separate(self, pairs: PairTile) -> Tile:
        """The rows of a tile whose columns are interleaved."""
        emitter, kind, depth = self.emitter, pairs.element.llvm, pairs.depth
        rows: list[tuple[str, ...]] = []
        for row in range(depth):
            parts = zip(pairs.parts, self.widths(pairs.columns), strict=True)
            rows.append(
                tuple(
                    emitter.shuffle(kind, depth * lanes, part, "poison", range(row, depth * lanes, depth))
                    for part, lanes in parts
                )
            )
        return Tile(pairs.element, pairs.columns, tuple(rows))

    def part_types(self, tile: Tile) -> list[str]:
        """The LLVM types of a tile's parts, row after row."""
        widths = self.widths(tile.columns)
        return [vector_type(tile.element.llvm, lanes) for _ in tile.rows for lanes in widths]

    # -- memory -------------------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> int:
        """The offset of `size` more bytes of this worker's scratch memory, aligned to a cache line."""
        offset = self.workspace_bytes
        self.workspace_bytes += -(-size // _LINE_BYTES) * _LINE_BYTES
        return offset

    def reserve_bounce(self, size: int) -> int:
        """The offset of scratch memory that is used and left at once, so that all such uses share it."""
        if self._bounce is None or size > self._bounce[1]:
            self._bounce = self.reserve(size), size
        return self._bounce[0]

    # -- the matrix unit ----------------------------------------------------------------------------------------------

    def into_unit(self, value: Tile) -> MatrixTile:
        """A tile of vectors in registers of the matrix unit, by way of scratch memory."""
        rows, row_bytes = len(value.rows), value.columns * value.element.size
        pointer = self._aside(rows * row_bytes)
        for row, parts in enumerate(value.rows):
            offset = row * row_bytes
            for part, lanes in zip(parts, self.widths(value.columns), strict=True):
                place = self.emitter.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}")
                kind = vector_type(value.element.memory, lanes)
                self.emitter.effect(f"store {kind} {part}, ptr {place}, align {value.element.size}")
                offset += lanes * value.element.size
        return amx.load(self.emitter, value.element, rows, row_bytes, pointer, row_bytes)

    def from_unit(self, value: MatrixTile) -> Tile:
        """The same back."""
        element, widths = value.element, self.widths(value.columns)
        pointer = self._aside(value.rows * value.row_bytes)
        amx.store(self.emitter, value, pointer, value.row_bytes)
        rows, offset = [], 0
        for _ in range(value.rows):
            parts = []
            for lanes in widths:
                place = self.emitter.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}")
                kind = vector_type(element.memory, lanes)
                parts.append(self.emitter.emit(f"load {kind}, ptr {place}, align {element.size}"))
                offset += lanes * element.size
            rows.append(tuple(parts))
        return Tile(element, value.columns, tuple(rows))

    def _aside(self, size: int) -> str:
        return self.emitter.pure(f"getelementptr i8, ptr %workspace, i64 {self.reserve_bounce(size)}")

    # -- the walk -----------------------------------------------------------------------------------------------------

    def timed(self, block: Block) -> list[Value]:
        """`run`, of a block that is a macro tile: timed, where the kernel is."""
        if self.tile_clock is None:
            return self.run(block)
        start = self.tile_clock.read()
        values = self.run(block)
        self.tile_clock.finish(start)
        return values

    def run(self, block: Block) -> list[Value]:
        """Writes the operations of a block; gives back what its terminator's operands stand for."""
        for op in block.ops:
            if op.name.endswith(".yield"):
                return [self._values[operand] for operand in op.operands]
            handler = self.handlers.get(type(op))
            if handler is None:
                raise CompileError(f"the LLVM backend has no code for {op.name}")
            for result, value in zip(op.results, handler(self, op), strict=True):
                moves = result in self.in_unit and isinstance(value, Tile)
                self._values[result] = self.into_unit(cast(Tile, value)) if moves else value
        return []
