"""Whole tiles to and from memory.

Memory outside a buffer is never touched. Whether a tile lies inside as a whole, which is the common case, is decided at
run time; tiles of several rows that do not take a detour through scratch memory, one masked row after another, so that
the code for whole tiles is the only one that is as long as the tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import GROUP_BYTES, IndexValue, Streamed, Tile, constant_index
from tessera.backend.llvm.memory.addressing import Axis, TileAddress, single
from tessera.backend.llvm.memory.parts import (
    PartLoader,
    backwards_part,
    gather_part,
    load,
    load_if,
    load_part,
    scatter_part,
    store_part,
)
from tessera.backend.llvm.tiles.transposition import transpose

MASKED_ROWS = 2
"""Rows that are rather read under masks, where these are free: the innermost loop of a product of bf16 pairs."""


def read(generator: Generator, at: TileAddress, fill: str | None) -> Tile:
    """The tile under a window; elements outside are `fill`, or anything where that is None."""
    size = at.element.size
    if fill is None and at.rows.checked and _is_a_broadcast(at):
        return _read_nearest(generator, at)
    if at.columns.size == 1:
        return _read_scalars(generator, at, fill)
    if at.columns.stride == size:
        return _read_rows(generator, at, fill, load_part)
    if at.columns.stride == -size:
        return _read_rows(generator, at, fill, backwards_part)
    if at.columns.step == 2 and at.columns.stride == 2 * size:
        return _read_every_second(generator, at, fill)
    if at.rows.stride == size and at.rows.size > 1:
        return transpose(generator, read(generator, at.transposed, fill))
    return _read_rows(generator, at, fill, gather_part)


def _is_a_broadcast(at: TileAddress) -> bool:
    """Whether a row is what instructions broadcast, an element or a pair of bf16, and lies inside along its columns."""
    size, columns = at.element.size, at.columns
    pair = columns.size == 2 and columns.size * size == GROUP_BYTES and columns.stride == size
    return (columns.size == 1 or pair) and not columns.checked


def _read_nearest(generator: Generator, at: TileAddress) -> Tile:
    """Rows outside read the nearest one inside: their addresses need no condition where they are used."""
    rows, columns = at.rows, at.columns.size
    offsets = [_clamped_offset(generator, rows, row) for row in range(rows.size)]
    pointers = at.row_pointers(generator.emitter, offsets)
    return Tile(at.element, columns, tuple((load(generator, at.element, each, columns),) for each in pointers))


def _read_scalars(generator: Generator, at: TileAddress, fill: str | None) -> Tile:
    emitter, rows, element = generator.emitter, at.rows, at.element
    column_inside = at.columns.inside(emitter, 0)
    pointers = at.row_pointers(emitter)
    values = []
    for row, pointer in enumerate(pointers):
        inside = emitter.both(rows.inside(emitter, row), column_inside)
        values.append((load_if(generator, element, pointer, inside, fill),))
    return Tile(element, 1, tuple(values))


def _clamped_offset(generator: Generator, rows: Axis, row: int) -> str:
    emitter = generator.emitter
    last = emitter.subtract(rows.extent.plus(-1), rows.position)
    steps = emitter.minimum(constant_index(row), last)
    if not rows.position.natural:
        steps = emitter.maximum(steps, emitter.subtract(constant_index(0), rows.position))
    return emitter.scaled(emitter.operand(steps), rows.stride)


def _read_rows(generator: Generator, at: TileAddress, fill: str | None, load_one: PartLoader) -> Tile:
    """Row after row, each in the parts that `load_one` reads."""
    emitter, widths = generator.emitter, generator.widths(at.columns.size)
    if load_one is load_part and at.rows.size == 1 and at.rows.checked and not at.columns.checked and fill is not None:
        return _read_row_or_fill(generator, at, fill)

    def rows(masked: bool, pointers: Sequence[str]) -> list[tuple[str, ...]]:
        values = []
        for row, pointer in enumerate(pointers):
            inside = at.rows.inside(emitter, row) if masked else "true"
            parts, first = [], 0
            for lanes in widths:
                mask = at.columns.mask(emitter, first, lanes, inside) if masked else None
                parts.append(load_one(generator, at, pointer, first, lanes, mask, fill))
                first += lanes
            values.append(tuple(parts))
        return values

    whole = at.whole(emitter)
    if whole == "true":
        values = rows(False, at.row_pointers(emitter))
    elif (
        at.rows.size > (MASKED_ROWS if emitter.target.has_avx512 else 1) and load_one is load_part and at.rows.step == 1
    ):
        values = rows(False, detour(generator, at, whole, fill=fill, fetch=True).row_pointers(emitter))
    else:
        values = rows(True, at.row_pointers(emitter))
    return Tile(at.element, at.columns.size, tuple(values))


def _read_row_or_fill(generator: Generator, at: TileAddress, fill: str) -> Tile:
    """One row that lies inside as a whole, or not at all: read from a constant then, which takes no mask."""
    emitter, size = generator.emitter, at.columns.size
    (pointer,) = at.row_pointers(emitter)
    outside = emitter.constant_row(at.element, fill, size)
    chosen = emitter.pure(f"select i1 {at.rows.inside(emitter, 0)}, ptr {pointer}, ptr {outside}")
    columns = Axis(size, at.element.size, constant_index(0), constant_index(size), False)
    return read(generator, TileAddress(at.element, single(), columns, chosen, (), 0), fill)


def _read_every_second(generator: Generator, at: TileAddress, fill: str | None) -> Tile:
    """Row after row, each part from two loads of neighbours, the second of which ends with the last element wanted."""
    emitter, columns, element = generator.emitter, at.columns, at.element
    neighbours = Axis(2 * columns.size - 1, element.size, columns.position, columns.extent, columns.checked)
    dense = TileAddress(element, at.rows, neighbours, at.pointer, at.terms, at.constant)
    masked = at.whole(emitter) != "true"
    values = []
    for row, pointer in enumerate(dense.row_pointers(emitter)):
        inside = at.rows.inside(emitter, row) if masked else "true"
        parts, first = [], 0
        for lanes in generator.widths(columns.size):
            if lanes == 1:
                mask = neighbours.mask(emitter, 2 * first, 1, inside) if masked else None
                parts.append(load_part(generator, dense, pointer, 2 * first, 1, mask, fill))
                first += 1
                continue
            halves = []
            for start in (2 * first, 2 * first + lanes - 1):
                mask = neighbours.mask(emitter, start, lanes, inside) if masked else None
                halves.append(load_part(generator, dense, pointer, start, lanes, mask, fill))
            # Lane 2i of the first half; the second begins at lane `lanes - 1` of the row, and follows it in a shuffle.
            order = [lane if lane < lanes else lane + 1 for lane in range(0, 2 * lanes, 2)]
            parts.append(emitter.shuffle(element.llvm, lanes, halves[0], halves[1], order))
            first += lanes
        values.append(tuple(parts))
    return Tile(element, columns.size, tuple(values))


def detour(generator: Generator, at: TileAddress, whole: str, fill: str | None, fetch: bool) -> TileAddress:
    """Where a tile's rows are: in the buffer where the tile lies inside as a whole, else in scratch memory.

    With `fetch` the scratch memory holds the tile. So one piece of code without masks serves both cases, and no tile
    has to pass, register by register, through a merge of two.
    """
    emitter, element, size = generator.emitter, at.element, at.element.size
    row_bytes = at.columns.size * size
    offset = generator.reserve_bounce(row_bytes * at.rows.size)
    scratch = emitter.pure(f"getelementptr i8, ptr %workspace, i64 {offset}")

    def direct() -> list[str]:
        return [at.first_pointer(emitter), str(at.rows.stride)]

    def aside() -> list[str]:
        def body(number: IndexValue, _: list[str]) -> list[str]:
            row = _read_rows(generator, at.row(emitter, number), fill, load_part)
            write(generator, _scratch_row(generator, at, scratch, number), row)
            return []

        if fetch:
            emitter.loop(constant_index(0), constant_index(at.rows.size), 1, [], body, once=True)
        return [scratch, str(row_bytes)]

    start, stride = emitter.branch(whole, direct, aside, ("ptr", "i64"))
    axis = Axis(at.rows.size, stride, constant_index(0), constant_index(at.rows.size), False)
    columns = Axis(at.columns.size, size, constant_index(0), constant_index(at.columns.size), False)
    return TileAddress(element, axis, columns, start, (), 0)


def _scratch_row(generator: Generator, at: TileAddress, scratch: str, number: IndexValue) -> TileAddress:
    row_bytes = at.columns.size * at.element.size
    offset = generator.emitter.scaled(generator.emitter.operand(number), row_bytes)
    columns = Axis(at.columns.size, at.element.size, constant_index(0), constant_index(at.columns.size), False)
    return TileAddress(at.element, single(), columns, scratch, (offset,), 0)


def write(generator: Generator, at: TileAddress, value: Tile, nontemporal: bool = False) -> None:
    """Stores a tile; elements outside the buffer are dropped. Rows that go past the caches are left to the caller, in
    `generator.streamed`.
    """
    size = at.element.size
    if at.columns.stride != size and at.rows.stride == size and at.rows.size > 1 and at.columns.size > 1:
        write(generator, at.transposed, transpose(generator, value), nontemporal)
        return
    emitter, widths = generator.emitter, generator.widths(at.columns.size)
    contiguous = at.columns.stride == size or at.columns.size == 1
    store = store_part if contiguous else scatter_part

    def rows(masked: bool, pointers: Sequence[str], past_caches: bool) -> list[str]:
        for row, pointer in enumerate(pointers):
            if past_caches:
                generator.streamed.append(Streamed(at.element, pointer, value.rows[row], widths))
                continue
            inside = at.rows.inside(emitter, row) if masked else "true"
            first = 0
            for part, lanes in zip(value.rows[row], widths, strict=True):
                mask = at.columns.mask(emitter, first, lanes, inside) if masked else None
                store(generator, at, pointer, first, lanes, mask, part)
                first += lanes
        return []

    whole = at.whole(emitter)
    # Rows of one vector are stored twice, with masks and without: a product by few columns overhangs everywhere.
    narrow = len(widths) == 1 and emitter.target.has_avx512
    if whole == "true":
        rows(False, at.row_pointers(emitter), nontemporal and contiguous)
    elif at.rows.size > 1 and at.columns.size > 1 and contiguous and not narrow:
        rows(False, detour(generator, at, whole, fill=None, fetch=False).row_pointers(emitter), past_caches=False)
        emitter.branch(whole, _nothing, lambda: bring_back(generator, at))
    elif emitter.target.has_avx512 and at.rows.size == 1:
        rows(True, at.row_pointers(emitter), past_caches=False)
    else:
        # Without AVX-512 a masked store is slow on many CPUs even where its mask is full.
        def masked() -> list[str]:
            return rows(True, at.row_pointers(emitter), past_caches=False)

        emitter.branch(whole, lambda: rows(False, at.row_pointers(emitter), past_caches=False), masked)


def _nothing() -> list[str]:
    return []


def bring_back(generator: Generator, at: TileAddress) -> list[str]:
    """Stores a tile that stands in scratch memory, one masked row after another."""
    emitter = generator.emitter
    offset = generator.reserve_bounce(at.columns.size * at.element.size * at.rows.size)
    scratch = emitter.pure(f"getelementptr i8, ptr %workspace, i64 {offset}")

    def body(number: IndexValue, _: list[str]) -> list[str]:
        row = _read_rows(generator, _scratch_row(generator, at, scratch, number), None, load_part)
        write(generator, at.row(emitter, number), row)
        return []

    emitter.loop(constant_index(0), constant_index(at.rows.size), 1, [], body, once=True)
    return []
