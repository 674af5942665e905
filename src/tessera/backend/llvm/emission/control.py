"""Control: worker shares, loops, conditionals, and the values that pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.generator import Generator, Handler
from tessera.backend.llvm.emission.values import (
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
from tessera.backend.llvm.matrix.amx import TILE, register_shapes
from tessera.backend.llvm.matrix.tiles import unit_shape
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile


def flatten(generator: Generator, values: Sequence[Value]) -> list[tuple[str, str]]:
    """`(type, operand)` of everything that a loop or a conditional must merge for these values."""
    flat: list[tuple[str, str]] = []
    for value in values:
        if isinstance(value, IndexValue):
            flat.append(("i64", generator.emitter.operand(value)))
            continue
        if isinstance(value, BufferValue):
            raise CompileError("buffers cannot be carried through loops or conditionals")
        if isinstance(value, TurnedTile):
            raise CompileError("tiles that are still to be transposed cannot be carried through loops or conditionals")
        if isinstance(value, MatrixTile):
            flat.extend([(TILE, register) for row in value.registers for register in row])
            continue
        tile_value = generator.separate(value) if isinstance(value, PairTile) else value
        operands = [part for row in tile_value.rows for part in row]
        flat.extend(zip(generator.part_types(tile_value), operands, strict=True))
    return flat


def rebuild(generator: Generator, like: Sequence[Value], names: Sequence[str]) -> list[Value]:
    """The values of the same kinds and shapes as `like` whose parts have these names."""
    rest = iter(names)
    values: list[Value] = []
    for value in like:
        if isinstance(value, IndexValue):
            values.append(IndexValue(next(rest)))
            continue
        if isinstance(value, MatrixTile):
            registers = tuple([tuple([next(rest) for _ in row]) for row in value.registers])
            values.append(replace(value, registers=registers))
            continue
        assert isinstance(value, (Tile, PairTile))
        count = 2 if isinstance(value, PairTile) else len(value.rows)
        parts = len(generator.widths(value.columns))
        rows = tuple(tuple(next(rest) for _ in range(parts)) for _ in range(count))
        values.append(Tile(value.element, value.columns, rows))
    return values


def _for(generator: Generator, op: tile.ForOp) -> Sequence[Value]:
    emitter = generator.emitter
    lower, upper, step = generator.index(op.lower), generator.index(op.upper), op.step.value.data
    unroll = op.unroll.value.data if op.unroll is not None else 1
    values: Sequence[Value] = [generator.value(initial) for initial in op.initial]
    if unroll > 1:
        middle = _whole_groups(emitter, lower, upper, step * unroll)
        values = _counted(generator, op, lower, middle, unroll, values)
        lower = middle
    return _counted(generator, op, lower, upper, 1, values)


def _whole_groups(emitter: FunctionEmitter, lower: IndexValue, upper: IndexValue, group: int) -> IndexValue:
    """Where the last whole group of steps ends."""
    length = emitter.subtract(upper, lower)
    if length.known is not None:
        return lower.plus(max(length.known, 0) // group * group)
    count = emitter.pure(f"sdiv i64 {emitter.operand(length)}, {group}")
    return emitter.add(lower, IndexValue(emitter.scaled(count, group), 0, lower.natural))


def _counted(
    generator: Generator, op: tile.ForOp, lower: IndexValue, upper: IndexValue, copies: int, values: Sequence[Value]
) -> Sequence[Value]:
    """The loop with `copies` of the body per turn, on bounds that hold a whole number of turns."""
    block, step = op.body.block, op.step.value.data
    if generator.emitter.below(lower, upper) == "false":
        return values

    def body(iv: IndexValue, names: list[str]) -> list[str]:
        current: Sequence[Value] = rebuild(generator, values, names)
        for copy in range(copies):
            generator.define(block.args, [iv.plus(copy * step), *current])
            current = generator.timed(block) if op.macro_tile is not None else generator.run(block)
        return [operand for _, operand in flatten(generator, current)]

    carried = flatten(generator, values)
    names = generator.emitter.loop(lower, upper, step * copies, carried, body)
    return rebuild(generator, values, names)


def _if(generator: Generator, op: scf.IfOp) -> Sequence[Value]:
    like: list[Value] = []

    def arm(taken: Operation, number: int) -> list[str]:
        region = taken.regions[number]
        values = generator.run(region.block) if region.blocks else []
        like[:] = values
        return [operand for _, operand in flatten(generator, values)]

    condition = generator.scalar(op.cond)
    if condition in ("true", "false"):
        region = op.regions[0 if condition == "true" else 1]
        return generator.run(region.block) if region.blocks else []
    types = [kind for result in op.results for kind in _types(generator, result)]
    otherwise = (lambda: arm(op, 1)) if op.false_region.blocks else None
    names = generator.emitter.branch(condition, lambda: arm(op, 0), otherwise, types)
    return rebuild(generator, like, names) if types else []


def _types(generator: Generator, result: SSAValue) -> list[str]:
    attribute = result.type
    if result in generator.in_unit:
        return [TILE for row in register_shapes(*unit_shape(attribute)) for _ in row]
    if isinstance(attribute, IndexType):
        return ["i64"]
    rows, columns = shape_of(attribute)
    kind = element_of(attribute).llvm
    return [vector_type(kind, lanes) for _ in range(rows) for lanes in generator.widths(columns)]


def _parallel(generator: Generator, op: tile.ParallelOp) -> Sequence[Value]:
    """This worker's share: whole steps of dimension `split`, as even as they come, and all of the other dimensions."""
    emitter, split = generator.emitter, op.split.value.data
    bounds: list[tuple[IndexValue, IndexValue]] = []
    for dimension, (extent, step) in enumerate(zip(op.extents, tile.integers(op.steps), strict=True)):
        length = generator.index(extent)
        bounds.append(_share(emitter, length, step) if dimension == split else (constant_index(0), length))

    def body() -> list[str]:
        generator.define(op.body.block.args, [bound for pair in bounds for bound in pair])
        is_tile = generator.tile_clock is not None and not _has_macro_tiles(op)  # a worker's share, where no loop is
        (generator.timed if is_tile else generator.run)(op.body.block)
        return []

    emitter.branch(emitter.both(*(emitter.below(lower, upper) for lower, upper in bounds)), body)
    return ()


def _has_macro_tiles(op: tile.ParallelOp) -> bool:
    return any(isinstance(inner, tile.ForOp) and inner.macro_tile is not None for inner in op.walk())


def _share(emitter: FunctionEmitter, length: IndexValue, step: int) -> tuple[IndexValue, IndexValue]:
    steps = IndexValue(emitter.pure(f"sdiv i64 {emitter.operand(length.plus(step - 1))}, {step}"), 0, True)

    def cut(worker: IndexValue) -> IndexValue:
        scaled = emitter.operand(emitter.multiply(steps, worker))
        return IndexValue(emitter.scaled(emitter.pure(f"sdiv i64 {scaled}, %workers"), step), 0, True)

    worker = IndexValue("%worker", 0, True)
    return cut(worker), emitter.minimum(cut(worker.plus(1)), length)


CONTROL = cast(
    "dict[type[Operation], Handler]",
    {tile.ForOp: _for, scf.IfOp: _if, tile.ParallelOp: _parallel},
)
"""The handler of each operation class."""
