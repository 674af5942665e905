"""Buffers: loads, stores, scratch memory, extents, prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects import memref
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Operation

from tessera.backend.llvm.emission.emitter import zero
from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.literals import literal
from tessera.backend.llvm.emission.values import (
    GROUP_BYTES,
    BufferValue,
    IndexValue,
    MatrixTile,
    PairTile,
    Tile,
    TurnedTile,
    Value,
    constant_index,
    element_of,
    shape_of,
    vector_type,
)
from tessera.backend.llvm.matrix import tiles as matrix_tiles
from tessera.backend.llvm.matrix.pairs import pair_tiles
from tessera.backend.llvm.memory.access import read, write
from tessera.backend.llvm.memory.addressing import TileAddress, advance, single, window
from tessera.backend.llvm.memory.parts import load, store_past_caches
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import static_strides

_LINE_BYTES = 64


def _load_op(generator: Generator, op: tile.LoadOp) -> Sequence[Value]:
    if op.tile in generator.in_unit:
        return (matrix_tiles.read(generator, op),)
    emitter, shape = generator.emitter, shape_of(op.tile.type)
    at = _window(generator, op, shape)
    element = at.element
    if _interleaves(at) and at.whole(emitter) == "true":
        return (_read_pairs(generator, at),)
    if op.oob is not None:
        return (read(generator, at, None),)
    fill = zero(element, 1)
    if isinstance(op.fill, (FloatAttr, IntegerAttr)):
        fill = literal(element, op.fill.value.data)
    if _turns_pairs(op, at):
        return (TurnedTile(read(generator, at.transposed, fill)),)
    return (read(generator, at, fill),)


def _turns_pairs(op: tile.LoadOp, at: TileAddress) -> bool:
    """Whether a tile of 16-bit elements whose columns are contiguous only goes where pairs of its rows lie together."""
    contiguous = at.element.size == 2 and at.rows.stride == at.element.size != at.columns.stride
    count = at.rows.size
    if not contiguous or count <= 2 or count & (count - 1) or at.columns.size == 1:
        return False
    users = [use.operation for use in op.tile.uses]
    stages = [user.parent_op() for user in users if isinstance(user, tile.YieldOp)]
    together = all(isinstance(stage, tile.StageOp) and stage.layout.data == "panels_vnni" for stage in stages)
    return together and len(stages) == len(users) > 0


def _read_pairs(generator: Generator, at: TileAddress) -> PairTile:
    (pointer,) = TileAddress(at.element, single(), single(), at.pointer, at.terms, at.constant).row_pointers(
        generator.emitter
    )
    parts, first, depth = [], 0, at.rows.size
    for lanes in generator.widths(at.columns.size):
        start = advance(generator.emitter, pointer, GROUP_BYTES * first)
        parts.append(load(generator, at.element, start, depth * lanes))
        first += lanes
    return PairTile(at.element, at.columns.size, tuple(parts))


def _window(generator: Generator, op: tile.LoadOp | tile.StoreOp, shape: tuple[int, int]) -> TileAddress:
    indices = [generator.index(index) for index in op.indices]
    buffer = generator.buffer(op.buffer)
    dims, in_bounds = tile.integers(op.dims), tile.integers(op.in_bounds)
    steps = tile.integers(op.steps) if isinstance(op, tile.LoadOp) and op.steps is not None else ()
    return window(generator.emitter, buffer, indices, dims, in_bounds, shape, steps)


def _store_op(generator: Generator, op: tile.StoreOp) -> Sequence[Value]:
    whole = generator.value(op.value)
    if isinstance(whole, MatrixTile):
        matrix_tiles.write(generator, op, whole)
        return ()
    value = generator.tile(op.value)
    at = _window(generator, op, shape_of(op.value.type))
    if _interleaves(at) and at.whole(generator.emitter) == "true":
        _write_pairs(generator, at, value)
    else:
        write(generator, at, value, op.nontemporal is not None)
    after = op.next_op
    if generator.streamed and not (isinstance(after, tile.StoreOp) and after.nontemporal is not None):
        store_past_caches(generator, generator.streamed)
        generator.streamed = []
    return ()


def _interleaves(at: TileAddress) -> bool:
    """Whether a tile is two rows of 16-bit elements, or four of 8-bit ones, whose columns lie interleaved in memory."""
    size, stride = at.element.size, at.columns.stride
    together = at.rows.size > 1 and at.columns.size > 1 and at.rows.stride == size
    return together and at.rows.size * size == GROUP_BYTES and stride == GROUP_BYTES


def _write_pairs(generator: Generator, at: TileAddress, value: Tile) -> None:
    pointer, emitter = at.first_pointer(generator.emitter), generator.emitter
    (pairs,) = pair_tiles(generator, value)
    offset = 0
    for part, lanes in zip(pairs.parts, generator.widths(value.columns), strict=True):
        kind = vector_type(at.element.llvm, pairs.depth * lanes)
        emitter.effect(f"store {kind} {part}, ptr {advance(emitter, pointer, offset)}, align {at.element.size}")
        offset += GROUP_BYTES * lanes


def scratch(
    generator: Generator, kind: MemRefType[Attribute], largest: Sequence[int], extents: Sequence[IndexValue]
) -> BufferValue:
    """A buffer in the worker's scratch memory with room for the `largest` extents; strides the type's or row-major."""
    element = element_of(kind)
    strides = static_strides(kind)
    step = 1
    for dimension in reversed(range(len(largest))):
        known = strides[dimension]
        strides[dimension] = step if known is None else known
        step = max(step, largest[dimension] * cast(int, strides[dimension]))
    size = 1 + sum((extent - 1) * cast(int, stride) for extent, stride in zip(largest, strides, strict=True))
    offset = generator.reserve(size * element.size)
    pointer = generator.emitter.pure(f"getelementptr i8, ptr %workspace, i64 {offset}")
    return BufferValue(pointer, element, tuple(extents), tuple(cast(int, stride) * element.size for stride in strides))


def _alloc(generator: Generator, op: tile.AllocOp) -> Sequence[Value]:
    shape = op.memory.type.get_shape()
    return (scratch(generator, op.memory.type, shape, [constant_index(extent) for extent in shape]),)


def _dim(generator: Generator, op: memref.DimOp) -> Sequence[Value]:
    dimension = generator.index(op.index).known
    if dimension is None:
        raise CompileError("memref.dim needs a constant dimension")
    return (generator.buffer(op.source).extents[dimension],)


def _prefetch(generator: Generator, op: tile.PrefetchOp) -> Sequence[Value]:
    emitter, buffer = generator.emitter, generator.buffer(op.buffer)
    indices = [generator.index(index) for index in op.indices]
    rows, columns = op.rows.value.data, op.columns.value.data
    rank = len(indices)
    dims = list(range(max(0, rank - 2), rank))
    at = window(emitter, buffer, indices, dims, [1] * len(dims), (rows if rank > 1 else 1, columns))
    intent = int(op.write is not None)
    emitter.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    for pointer in at.row_pointers(emitter):
        for offset in range(0, columns * buffer.element.size, _LINE_BYTES):
            line = advance(emitter, pointer, offset)
            emitter.effect(f"call void @llvm.prefetch.p0(ptr {line}, i32 {intent}, i32 3, i32 1)")
    return ()


MEMORY = cast(
    "dict[type[Operation], Handler]",
    {
        tile.LoadOp: _load_op,
        tile.StoreOp: _store_op,
        tile.AllocOp: _alloc,
        tile.PrefetchOp: _prefetch,
        memref.DimOp: _dim,
    },
)
"""The handler of each operation class."""
