"""Tiles to and from memory: loads, stores, scratch memory, prefetches.

Memory outside a buffer is never touched. A tile that lies inside as a whole, which is the common case and decided at
run time, takes a path without masks; only the others are masked element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects import memref
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, Operation

from tessera.backend.llvm.addressing import Axis, Window, advance, window
from tessera.backend.llvm.emitter import zero
from tessera.backend.llvm.generator import Generator, Handler
from tessera.backend.llvm.literals import literal
from tessera.backend.llvm.transposition import transpose
from tessera.backend.llvm.values import (
    Buffer,
    Element,
    Index,
    PairTile,
    Tile,
    Value,
    constant_index,
    element_of,
    shape_of,
    vector_type,
)
from tessera.errors import CompileError
from tessera.ir import tile

_LINE_BYTES = 64


# -- reading ----------------------------------------------------------------------------------------------------------


def read(generator: Generator, at: Window, fill: str | None) -> Tile:
    """The tile under a window; elements outside are `fill`, or anything where that is None."""
    size = at.element.size
    if at.columns.size == 1:
        return _read_scalars(generator, at, fill)
    if at.columns.stride == size:
        return _read_rows(generator, at, fill, _load_row)
    if at.rows.stride == size and at.rows.size > 1:
        return transpose(generator, read(generator, at.transposed, fill))
    return _read_rows(generator, at, fill, _gather_row)


def _read_scalars(generator: Generator, at: Window, fill: str | None) -> Tile:
    emitter, rows, element = generator.emitter, at.rows, at.element
    if fill is None and rows.checked and not at.columns.checked:
        # Rows outside read the nearest one inside: their addresses need no condition where they are used.
        pointers = at.row_pointers(emitter, [_clamped_offset(generator, rows, row) for row in range(rows.size)])
        return Tile(element, 1, tuple((_load(generator, element, pointer, 1),) for pointer in pointers))
    column_inside = at.columns.inside(emitter, 0)
    pointers = at.row_pointers(emitter)
    values = []
    for row, pointer in enumerate(pointers):
        inside = emitter.both(rows.inside(emitter, row), column_inside)
        values.append((_load_if(generator, element, pointer, inside, fill),))
    return Tile(element, 1, tuple(values))


def _clamped_offset(generator: Generator, rows: Axis, row: int) -> str:
    emitter = generator.emitter
    last = emitter.subtract(rows.extent.plus(-1), rows.position)
    steps = emitter.minimum(constant_index(row), last)
    if not rows.position.natural:
        steps = emitter.maximum(steps, emitter.subtract(constant_index(0), rows.position))
    return emitter.scaled(emitter.operand(steps), rows.stride)


def _load(generator: Generator, element: Element, pointer: str, lanes: int) -> str:
    memory = vector_type(element.memory, lanes)
    return _from_memory(
        generator, element, generator.emitter.emit(f"load {memory}, ptr {pointer}, align {element.size}"), lanes
    )


def _from_memory(generator: Generator, element: Element, value: str, lanes: int) -> str:
    if element.kind != "bool":
        return value
    return generator.emitter.emit(f"icmp ne {vector_type('i8', lanes)} {value}, {zero(element, lanes) if lanes > 1 else 0}")


def _to_memory(generator: Generator, element: Element, value: str, lanes: int) -> str:
    if element.kind != "bool":
        return value
    return generator.emitter.emit(f"zext {vector_type('i1', lanes)} {value} to {vector_type('i8', lanes)}")


def _load_if(generator: Generator, element: Element, pointer: str, inside: str, fill: str | None) -> str:
    """One element, read from a constant that holds `fill` where it lies outside."""
    emitter = generator.emitter
    if inside != "true":
        stored = fill or zero(element, 1)
        constant = emitter.constant(element, {"true": "1", "false": "0"}.get(stored, stored))
        pointer = emitter.pure(f"select i1 {inside}, ptr {pointer}, ptr {constant}")
    return _load(generator, element, pointer, 1)


_PartLoader = Callable[[Generator, Window, str, int, int, str | None, str | None], str]


def _read_rows(generator: Generator, at: Window, fill: str | None, load: _PartLoader) -> Tile:
    """Row after row in parts; `load` reads one part of `lanes` from column `first` on, under a mask unless it is None."""
    emitter, widths = generator.emitter, generator.widths(at.columns.size)

    def rows(masked: bool, pointers: Sequence[str]) -> list[tuple[str, ...]]:
        values = []
        for row, pointer in enumerate(pointers):
            inside = at.rows.inside(emitter, row) if masked else "true"
            parts, first = [], 0
            for lanes in widths:
                mask = at.columns.mask(emitter, first, lanes, inside) if masked else None
                parts.append(load(generator, at, pointer, first, lanes, mask, fill))
                first += lanes
            values.append(tuple(parts))
        return values

    whole = at.whole(emitter)
    if whole == "true":
        values = rows(False, at.row_pointers(emitter))
    elif at.rows.size > 1 and load is _load_row:
        values = rows(False, _detour(generator, at, whole, fill=fill, fetch=True))
    else:
        values = rows(True, at.row_pointers(emitter))
    return Tile(at.element, at.columns.size, tuple(values))


def _detour(generator: Generator, at: Window, whole: str, fill: str | None, fetch: bool) -> list[str]:
    """The addresses of the rows of a tile: in the buffer where the tile lies inside as a whole, else in scratch memory.

    With `fetch` the scratch memory holds the tile. So one piece of code without masks serves both cases, and no tile has
    to pass, register by register, through a merge of two.
    """
    emitter, element, size = generator.emitter, at.element, at.element.size
    row_bytes = at.columns.size * size
    offset = generator.reserve_bounce(row_bytes * at.rows.size)
    scratch = emitter.pure(f"getelementptr i8, ptr %workspace, i64 {offset}")

    def direct() -> list[str]:
        return [at.first_pointer(emitter), str(at.rows.stride)]

    def aside() -> list[str]:
        def body(number: Index, _: list[str]) -> list[str]:
            row = _read_rows(generator, at.row(emitter, number), fill, _load_row)
            write(generator, _scratch_row(generator, at, scratch, number), row)
            return []

        if fetch:
            emitter.loop(constant_index(0), constant_index(at.rows.size), 1, [], body, once=True)
        return [scratch, str(row_bytes)]

    start, stride = emitter.branch(whole, direct, aside, ("ptr", "i64"))
    axis = Axis(at.rows.size, stride, constant_index(0), constant_index(at.rows.size), False)
    columns = Axis(at.columns.size, size, constant_index(0), constant_index(at.columns.size), False)
    return Window(element, axis, columns, start, (), 0).row_pointers(emitter)


def _scratch_row(generator: Generator, at: Window, scratch: str, number: Index) -> Window:
    row_bytes = at.columns.size * at.element.size
    offset = generator.emitter.scaled(generator.emitter.operand(number), row_bytes)
    columns = Axis(at.columns.size, at.element.size, constant_index(0), constant_index(at.columns.size), False)
    return Window(at.element, _single(), columns, scratch, (offset,), 0)


def _load_row(
    generator: Generator, at: Window, pointer: str, first: int, lanes: int, mask: str | None, fill: str | None
) -> str:
    emitter, element = generator.emitter, at.element
    pointer = advance(emitter, pointer, first * element.size)
    if mask is None:
        return _load(generator, element, pointer, lanes)
    if lanes == 1:
        return _load_if(generator, element, pointer, mask, fill)
    memory = vector_type(element.memory, lanes)
    text = emitter.call(
        memory,
        f"@llvm.masked.load.v{lanes}{_suffix(element)}.p0",
        ("ptr", pointer),
        ("i32", str(element.size)),
        (f"<{lanes} x i1>", mask),
        (memory, _passthrough(generator, element, fill, lanes)),
    )
    return _from_memory(generator, element, emitter.emit(text), lanes)


def _gather_row(
    generator: Generator, at: Window, pointer: str, first: int, lanes: int, mask: str | None, fill: str | None
) -> str:
    emitter, element, stride = generator.emitter, at.element, at.columns.stride
    if stride == 0 and mask is None:
        return emitter.splat(element.llvm, _load(generator, element, pointer, 1), lanes)
    if lanes == 1:
        start = pointer if not first else emitter.pure(f"getelementptr i8, ptr {pointer}, i64 {_times(generator, stride, first)}")
        return _load_if(generator, element, start, mask or "true", fill)
    memory = vector_type(element.memory, lanes)
    text = emitter.call(
        memory,
        f"@llvm.masked.gather.v{lanes}{_suffix(element)}.v{lanes}p0",
        (f"<{lanes} x ptr>", _lane_pointers(generator, pointer, stride, first, lanes)),
        ("i32", str(element.size)),
        (f"<{lanes} x i1>", mask or "splat (i1 true)"),
        (memory, _passthrough(generator, element, fill, lanes)),
    )
    return _from_memory(generator, element, emitter.emit(text), lanes)


def _times(generator: Generator, stride: int | str, count: int) -> int | str:
    return stride * count if isinstance(stride, int) else generator.emitter.pure(f"mul nsw i64 {stride}, {count}")


def _lane_pointers(generator: Generator, pointer: str, stride: int | str, first: int, lanes: int) -> str:
    emitter = generator.emitter
    if isinstance(stride, int):
        offsets = "<" + ", ".join(f"i64 {(first + lane) * stride}" for lane in range(lanes)) + ">"
    else:
        steps = "<" + ", ".join(f"i64 {first + lane}" for lane in range(lanes)) + ">"
        offsets = emitter.pure(f"mul nsw <{lanes} x i64> {steps}, {emitter.splat('i64', stride, lanes)}")
    return emitter.emit(f"getelementptr i8, ptr {pointer}, <{lanes} x i64> {offsets}")


def _suffix(element: Element) -> str:
    return {"float": "f32", "double": "f64"}.get(element.memory, element.memory)


def _passthrough(generator: Generator, element: Element, fill: str | None, lanes: int) -> str:
    if fill is None:
        return "poison"
    stored = {"true": "1", "false": "0"}.get(fill, fill)
    return generator.emitter.splat(element.memory, stored, lanes)


def _load_op(generator: Generator, op: tile.LoadOp) -> Sequence[Value]:
    emitter, shape = generator.emitter, shape_of(op.tile.type)
    at = _window(generator, op, shape)
    element = at.element
    pairs = shape[0] == 2 and shape[1] > 1 and element.size == 2 and at.rows.stride == 2 and at.columns.stride == 4
    if pairs and at.whole(emitter) == "true":
        return (_read_pairs(generator, at),)
    if op.oob is not None:
        return (read(generator, at, None),)
    fill = zero(element, 1)
    if isinstance(op.fill, (FloatAttr, IntegerAttr)):
        fill = literal(element, op.fill.value.data)
    return (read(generator, at, fill),)


def _read_pairs(generator: Generator, at: Window) -> PairTile:
    (pointer,) = Window(at.element, _single(), _single(), at.pointer, at.terms, at.constant).row_pointers(generator.emitter)
    parts, first = [], 0
    for lanes in generator.widths(at.columns.size):
        parts.append(_load(generator, at.element, advance(generator.emitter, pointer, 4 * first), 2 * lanes))
        first += lanes
    return PairTile(at.element, at.columns.size, tuple(parts))


def _single() -> Axis:
    return Axis(1, 0, constant_index(0), constant_index(1), False)


def _window(generator: Generator, op: tile.LoadOp | tile.StoreOp, shape: tuple[int, int]) -> Window:
    indices = [generator.index(index) for index in op.indices]
    buffer = generator.buffer(op.buffer)
    return window(generator.emitter, buffer, indices, tile.integers(op.dims), tile.integers(op.in_bounds), shape)


# -- writing ----------------------------------------------------------------------------------------------------------


def write(generator: Generator, at: Window, value: Tile, nontemporal: bool = False) -> None:
    """Stores a tile; elements outside the buffer are dropped."""
    size = at.element.size
    if at.columns.stride != size and at.rows.stride == size and at.rows.size > 1 and at.columns.size > 1:
        write(generator, at.transposed, transpose(generator, value), nontemporal)
        return
    emitter, widths = generator.emitter, generator.widths(at.columns.size)
    contiguous = at.columns.stride == size or at.columns.size == 1
    store = _store_row if contiguous else _scatter_row

    def rows(masked: bool, pointers: Sequence[str], past_caches: bool) -> list[str]:
        for row, pointer in enumerate(pointers):
            if past_caches:
                _store_past_caches(generator, at.element, pointer, value.rows[row], widths)
                continue
            inside = at.rows.inside(emitter, row) if masked else "true"
            first = 0
            for part, lanes in zip(value.rows[row], widths, strict=True):
                mask = at.columns.mask(emitter, first, lanes, inside) if masked else None
                store(generator, at, pointer, first, lanes, mask, part)
                first += lanes
        return []

    whole = at.whole(emitter)
    if whole == "true":
        rows(False, at.row_pointers(emitter), nontemporal and contiguous)
    elif at.rows.size > 1 and at.columns.size > 1 and contiguous:
        rows(False, _detour(generator, at, whole, fill=None, fetch=False), past_caches=False)
        emitter.branch(whole, _nothing, lambda: _bring_back(generator, at))
    elif emitter.target.has_avx512:
        rows(True, at.row_pointers(emitter), past_caches=False)
    else:
        # Without AVX-512 a masked store is slow on many CPUs even where its mask is full.
        def masked() -> list[str]:
            return rows(True, at.row_pointers(emitter), past_caches=False)

        emitter.branch(whole, lambda: rows(False, at.row_pointers(emitter), past_caches=False), masked)


def _nothing() -> list[str]:
    return []


def _bring_back(generator: Generator, at: Window) -> list[str]:
    """Stores a tile that stands in scratch memory, one masked row after another."""
    emitter = generator.emitter
    offset = generator.reserve_bounce(at.columns.size * at.element.size * at.rows.size)
    scratch = emitter.pure(f"getelementptr i8, ptr %workspace, i64 {offset}")

    def body(number: Index, _: list[str]) -> list[str]:
        row = _read_rows(generator, _scratch_row(generator, at, scratch, number), None, _load_row)
        write(generator, at.row(emitter, number), row)
        return []

    emitter.loop(constant_index(0), constant_index(at.rows.size), 1, [], body, once=True)
    return []


def _store_row(
    generator: Generator, at: Window, pointer: str, first: int, lanes: int, mask: str | None, value: str
) -> None:
    emitter, element = generator.emitter, at.element
    pointer = advance(emitter, pointer, first * element.size)
    stored, memory = _to_memory(generator, element, value, lanes), vector_type(element.memory, lanes)
    if mask is None:
        emitter.effect(f"store {memory} {stored}, ptr {pointer}, align {element.size}")
    elif lanes == 1:
        _store_if(generator, element, pointer, mask, stored)
    else:
        kind = f"void @llvm.masked.store.v{lanes}{_suffix(element)}.p0"
        _call(generator, kind, (memory, stored), ("ptr", pointer), ("i32", str(element.size)), (f"<{lanes} x i1>", mask))


def _scatter_row(
    generator: Generator, at: Window, pointer: str, first: int, lanes: int, mask: str | None, value: str
) -> None:
    emitter, element, stride = generator.emitter, at.element, at.columns.stride
    stored, memory = _to_memory(generator, element, value, lanes), vector_type(element.memory, lanes)
    if lanes == 1:
        start = emitter.pure(f"getelementptr i8, ptr {pointer}, i64 {_times(generator, stride, first)}")
        _store_if(generator, element, start, mask or "true", stored)
        return
    kind = f"void @llvm.masked.scatter.v{lanes}{_suffix(element)}.v{lanes}p0"
    pointers = _lane_pointers(generator, pointer, stride, first, lanes)
    mask = mask or "splat (i1 true)"
    _call(
        generator, kind, (memory, stored), (f"<{lanes} x ptr>", pointers), ("i32", str(element.size)), (f"<{lanes} x i1>", mask)
    )


def _call(generator: Generator, function: str, *arguments: tuple[str, str]) -> None:
    result, _, name = function.partition(" ")
    generator.emitter.effect(generator.emitter.call(result, name, *arguments))


def _store_if(generator: Generator, element: Element, pointer: str, inside: str, stored: str) -> None:
    def store() -> list[str]:
        generator.emitter.effect(f"store {element.memory} {stored}, ptr {pointer}, align {element.size}")
        return []

    generator.emitter.branch(inside, store)


def _store_past_caches(
    generator: Generator, element: Element, pointer: str, parts: Sequence[str], widths: Sequence[int]
) -> None:
    """Non-temporal stores where the address is aligned, which these instructions need, else ordinary ones."""
    emitter = generator.emitter
    stored = [_to_memory(generator, element, part, lanes) for part, lanes in zip(parts, widths, strict=True)]
    alignment = min(_LINE_BYTES, widths[0] * element.size)
    if alignment & (alignment - 1):
        alignment = element.size
    generator.streams = True

    def store(align: int, suffix: str) -> list[str]:
        offset = 0
        for value, lanes in zip(stored, widths, strict=True):
            target = advance(emitter, pointer, offset)
            emitter.effect(f"store {vector_type(element.memory, lanes)} {value}, ptr {target}, align {align}{suffix}")
            offset += lanes * element.size
        return []

    address = emitter.emit(f"ptrtoint ptr {pointer} to i64")
    low = emitter.emit(f"and i64 {address}, {alignment - 1}")
    aligned = emitter.emit(f"icmp eq i64 {low}, 0")
    emitter.branch(aligned, lambda: store(alignment, ", !nontemporal !0"), lambda: store(element.size, ""))


def _store_op(generator: Generator, op: tile.StoreOp) -> Sequence[Value]:
    value = generator.tile(op.value)
    at = _window(generator, op, shape_of(op.value.type))
    write(generator, at, value, op.nontemporal is not None)
    return ()


# -- buffers ----------------------------------------------------------------------------------------------------------


def static_strides(kind: MemRefType[Attribute]) -> list[int | None]:
    """The strides, in elements, that a memref type fixes; None where it leaves them open."""
    if isinstance(kind.layout, StridedLayoutAttr):
        return [None if isinstance(stride, NoneAttr) else stride.data for stride in kind.layout.strides.data]
    strides: list[int | None] = []
    step: int | None = 1
    for extent in reversed(kind.get_shape()):
        strides.append(step)
        step = step * extent if step is not None and extent >= 0 else None
    return strides[::-1]


def scratch(
    generator: Generator, kind: MemRefType[Attribute], largest: Sequence[int], extents: Sequence[Index]
) -> Buffer:
    """A buffer in the worker's scratch memory with room for the `largest` extents; strides are the type's or row-major."""
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
    return Buffer(pointer, element, tuple(extents), tuple(cast(int, stride) * element.size for stride in strides))


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
