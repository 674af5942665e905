"""Tile operations without memory: broadcast, mask, iota, compare, select, cast, reduce, split and join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from xdsl.ir import Operation

from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.values import (
    I1,
    I64,
    Element,
    IndexValue,
    PairTile,
    Tile,
    Value,
    element_of,
    shape_of,
    vector_type,
)
from tessera.backend.llvm.memory.addressing import lanes_below
from tessera.backend.llvm.tiles.arithmetic import MAXIMUM, MINIMUM, Maker, apply, binary, compare, intrinsic, select
from tessera.backend.llvm.tiles.conversion import computed_in, convert
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile


def _broadcast(generator: Generator, op: tile.BroadcastOp) -> Sequence[Value]:
    emitter, (rows, columns) = generator.emitter, shape_of(op.result.type)
    source = generator.tile(op.value)
    lines = source.rows
    if source.columns == 1 and columns > 1:
        kind, widths = source.element.llvm, generator.widths(columns)
        lines = tuple(tuple(emitter.splat(kind, row[0], lanes) for lanes in widths) for row in lines)
    return (Tile(source.element, columns, lines * (rows // len(lines))),)


def _along(generator: Generator, shape: tuple[int, int], axis: int, rank: int, part: Callable[[int, int], str]) -> Tile:
    """An i1 or i64 tile from `part(first element along the axis, lanes)`; across the axis all elements are equal."""
    rows, columns = shape
    widths = generator.widths(columns)
    element = I1
    if axis == rank - 1:
        row, first = [], 0
        for lanes in widths:
            row.append(part(first, lanes))
            first += lanes
        return Tile(element, columns, (tuple(row),) * rows)
    lines = []
    for line in range(rows):
        scalar = part(line, 1)
        lines.append(tuple(generator.emitter.splat("i1", scalar, lanes) for lanes in widths))
    return Tile(element, columns, tuple(lines))


def _mask(generator: Generator, op: tile.MaskOp) -> Sequence[Value]:
    """The lanes before the limit are counted first: comparing 32-bit lane numbers with that takes half the work."""
    emitter = generator.emitter
    rest = emitter.subtract(generator.index(op.limit), generator.index(op.position))

    def part(first: int, lanes: int) -> str:
        clamped = emitter.minimum(
            emitter.maximum(rest.plus(-first), IndexValue(None, 0, True)), IndexValue(None, lanes, True)
        )
        count = emitter.pure(f"trunc i64 {emitter.operand(clamped)} to i32")
        return lanes_below(emitter, count, lanes)

    rank = len(op.result.type.get_shape())
    return (_along(generator, shape_of(op.result.type), op.axis.value.data, rank, part),)


def _iota(generator: Generator, op: tile.IotaOp) -> Sequence[Value]:
    emitter, offset = generator.emitter, generator.index(op.offset)
    rows, columns = shape_of(op.result.type)
    widths = generator.widths(columns)
    if op.axis.value.data != len(op.result.type.get_shape()) - 1:
        lines = []
        for line in range(rows):
            scalar = emitter.operand(offset.plus(line))
            lines.append(tuple(emitter.splat("i64", scalar, lanes) for lanes in widths))
        return (Tile(I64, columns, tuple(lines)),)
    parts, first = [], 0
    for lanes in widths:
        start = emitter.splat("i64", emitter.operand(offset.plus(first)), lanes)
        steps = ", ".join(f"i64 {lane}" for lane in range(lanes))
        parts.append(start if lanes == 1 else emitter.pure(f"add <{lanes} x i64> {start}, <{steps}>"))
        first += lanes
    return (Tile(I64, columns, (tuple(parts),) * rows),)


_SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED = _SIGNED | {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def _compare(generator: Generator, op: tile.CompareOp) -> Sequence[Value]:
    a, b, predicate = generator.tile(op.a), generator.tile(op.b), op.predicate.data
    if a.element.kind == "float":
        return (compare(generator, a, b, f"fcmp {_FLOAT[predicate]}"),)
    table = _UNSIGNED if a.element is I1 else _SIGNED  # false < true
    return (compare(generator, a, b, f"icmp {table[predicate]}"),)


def _select(generator: Generator, op: tile.SelectOp) -> Sequence[Value]:
    return (select(generator, generator.tile(op.condition), generator.tile(op.a), generator.tile(op.b)),)


def _cast(generator: Generator, op: tile.CastOp) -> Sequence[Value]:
    return (convert(generator, generator.tile(op.value), element_of(op.result.type)),)


# -- reductions -------------------------------------------------------------------------------------------------------

Item = TypeVar("Item")

_COMBINE: dict[str, dict[str, Maker]] = {
    "float": {"add": binary("fadd"), "mul": binary("fmul"), "max": MAXIMUM, "min": MINIMUM},
    "int": {"add": binary("add"), "mul": binary("mul"), "max": intrinsic("smax"), "min": intrinsic("smin")},
    "bool": {"add": binary("or"), "mul": binary("and"), "max": binary("or"), "min": binary("and")},
}


def _pick(predicate: str) -> Maker:
    """The larger or smaller of two floats by a comparison, which with its selection is one instruction on x86."""

    def make(generator: Generator, element: Element, lanes: int, operands: Sequence[str]) -> str:
        kind, (a, b) = vector_type(element.llvm, lanes), operands
        condition = generator.emitter.emit(f"fcmp {predicate} {kind} {a}, {b}")
        return generator.emitter.emit(f"select {vector_type('i1', lanes)} {condition}, {kind} {a}, {kind} {b}")

    return make


_LOOSE: dict[str, Maker] = _COMBINE["float"] | {"max": _pick("ogt"), "min": _pick("olt")}
"""Of floats where it is left open what becomes of NaN."""


def _reduce(generator: Generator, op: tile.ReduceOp) -> Sequence[Value]:
    """Sums in the order of a fixed binary tree, 16-bit floats in fp32 up to the end."""
    value = generator.tile(op.tile)
    element = computed_in(value.element)
    loose = op.nan is not None and element.kind == "float"
    make = (_LOOSE if loose else _COMBINE[element.kind])[op.kind.data]
    wide = convert(generator, value, element)
    if op.axis.value.data == len(op.result.type.get_shape()) - 1:
        rows = tuple((total,) for total in _across_rows(generator, wide, make))
        return (convert(generator, Tile(element, 1, rows), value.element),)
    lines = [Tile(element, value.columns, (row,)) for row in wide.rows]
    total = _tree(lines, lambda a, b: apply(generator, make, [a, b]))
    return (convert(generator, total, value.element),)


def _element(generator: Generator, op: tile.ElementOp) -> Sequence[Value]:
    # A tile of one column holds scalars, and so does a scalar.
    return (generator.tile(op.tile),)


def _tree(items: Sequence[Item], combine: Callable[[Item, Item], Item]) -> Item:
    """All items combined, neighbours first."""
    while len(items) > 1:
        paired = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = [*paired, *items[len(paired) * 2 :]]
    return items[0]


def _across_rows(generator: Generator, value: Tile, make: Maker) -> list[str]:
    """Each row to a scalar; rows of whole registers together, which takes a third of the instructions."""
    element, lanes = value.element, generator.emitter.lanes
    distinct = list(dict.fromkeys(value.rows))
    if value.columns % lanes or len(distinct) == 1:
        known = {row: _across(generator, row, value.columns, element, make) for row in distinct}
        return [known[row] for row in value.rows]
    vectors = [_tree(row, _maker(generator, make, element, lanes)) for row in distinct]
    totals: list[str] = []
    while len(totals) < len(vectors):
        count = min(lanes, 1 << (len(vectors) - len(totals)).bit_length() - 1)
        totals += _fold_together(generator, vectors[len(totals) : len(totals) + count], lanes, element, make)
    return [totals[distinct.index(row)] for row in value.rows]


def _fold_together(generator: Generator, vectors: list[str], lanes: int, element: Element, make: Maker) -> list[str]:
    """Vectors, a power of two of them, each to a scalar, in the order of `_fold`: halves are added to halves, of two
    vectors at a time while there are two.
    """
    emitter, kind = generator.emitter, element.llvm
    count, parts, width = 1, lanes, lanes  # each vector holds `count` rows of `parts` partial results
    while parts > 1:
        half, pair = parts // 2, len(vectors) > 1
        firsts = [row * parts for row in range(count)]
        firsts += [lanes + first for first in firsts] if pair else []
        low = [first + lane for first in firsts for lane in range(half)]
        high = [lane + half for lane in low]
        others = vectors[1::2] if pair else ["poison"]
        vectors = [
            make(generator, element, len(low), [emitter.shuffle(kind, width, a, b, order) for order in (low, high)])
            for a, b in zip(vectors[::2], others, strict=True)
        ]
        count, parts, width = len(firsts), half, len(low)
    if count == 1:
        return vectors
    return [emitter.shuffle(kind, count, vectors[0], "poison", (row,)) for row in range(count)]


def _across(generator: Generator, row: Sequence[str], columns: int, element: Element, make: Maker) -> str:
    """One row to a scalar: parts of equal width by a tree, then each part's halves by halves."""
    by_width: dict[int, list[str]] = {}
    for part, lanes in zip(row, generator.widths(columns), strict=True):
        by_width.setdefault(lanes, []).append(part)
    scalars = [
        _fold(generator, _tree(parts, _maker(generator, make, element, lanes)), lanes, element, make)
        for lanes, parts in by_width.items()
    ]
    return _tree(scalars, _maker(generator, make, element, 1))


def _maker(generator: Generator, make: Maker, element: Element, lanes: int) -> Callable[[str, str], str]:
    return lambda a, b: make(generator, element, lanes, (a, b))


def _fold(generator: Generator, part: str, lanes: int, element: Element, make: Maker) -> str:
    emitter, kind = generator.emitter, element.llvm
    if lanes == 1:
        return part
    half = 1 << (lanes - 1).bit_length() - 1
    low = emitter.shuffle(kind, lanes, part, "poison", range(half))
    high = emitter.shuffle(kind, lanes, part, "poison", range(half, lanes))
    rest = lanes - half
    if rest == half:
        return _fold(generator, make(generator, element, half, (low, high)), half, element, make)
    a, b = _fold(generator, low, half, element, make), _fold(generator, high, rest, element, make)
    return make(generator, element, 1, (a, b))


# -- halves, and tiles side by side -----------------------------------------------------------------------------------


def _split(generator: Generator, op: tile.SplitOp) -> Sequence[Value]:
    whole = generator.tile(op.tile)
    if op.axis.value.data != len(op.lower.type.get_shape()) - 1:
        half = len(whole.rows) // 2
        return tuple(Tile(whole.element, whole.columns, rows) for rows in (whole.rows[:half], whole.rows[half:]))
    columns = whole.columns // 2
    parts = _whole_registers(generator, op, columns)
    lower, upper = (tuple(row[at : at + parts] for row in whole.rows) for at in (0, parts))
    return Tile(whole.element, columns, lower), Tile(whole.element, columns, upper)


def _join(generator: Generator, op: tile.JoinOp) -> Sequence[Value]:
    values = [generator.value(part) for part in op.parts]
    along_columns = op.axis.value.data == len(op.result.type.get_shape()) - 1
    _, columns = shape_of(op.result.type)
    if along_columns:
        _whole_registers(generator, op, columns // len(values))
    interleaved = [value for value in values if isinstance(value, PairTile)]
    if along_columns and len(interleaved) == len(values):
        parts = tuple(part for value in interleaved for part in value.parts)
        return (PairTile(interleaved[0].element, columns, parts),)
    tiles = [generator.tile(part) for part in op.parts]
    if along_columns:
        rows = tuple(sum(each, ()) for each in zip(*[value.rows for value in tiles], strict=True))
    else:
        rows = sum((value.rows for value in tiles), ())
    return (Tile(tiles[0].element, columns, rows),)


def _whole_registers(generator: Generator, op: Operation, columns: int) -> int:
    """The registers of a row of that many columns. Raises CompileError where another tile begins inside one."""
    count, rest = divmod(columns, generator.emitter.lanes)
    if rest:
        raise CompileError(
            f"the LLVM backend has no code for {op.name} of tiles of {columns} columns, part of a register"
        )
    return count


TILES = cast(
    "dict[type[Operation], Handler]",
    {
        tile.BroadcastOp: _broadcast,
        tile.MaskOp: _mask,
        tile.IotaOp: _iota,
        tile.CompareOp: _compare,
        tile.SelectOp: _select,
        tile.CastOp: _cast,
        tile.ReduceOp: _reduce,
        tile.ElementOp: _element,
        tile.SplitOp: _split,
        tile.JoinOp: _join,
    },
)
"""The handler of each operation class."""
