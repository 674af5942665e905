"""The grid, loops and conditionals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.backend.cuda_tile.emission.emitter import Handler, TileEmitter
from tessera.backend.cuda_tile.program.program import TileValue
from tessera.backend.cuda_tile.program.types import I32, I64, TileType
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import runs_once


def _parallel(e: TileEmitter, op: tile.ParallelOp) -> None:
    """Each tile block takes one step of each dimension, or walks all steps with the others; the grid's one axis counts
    them, last dimension fastest, or group after group of steps of the last dimension but one.
    """
    number = _first(e, "get_tile_block_id")
    steps = tile.integers(op.steps)
    counts = [e.divided_up(e.get(extent), step) for extent, step in zip(op.extents, steps, strict=True)]
    if op.grid is None:
        _step(e, op, number, counts)
        return
    total = counts[0]
    for count in counts[1:]:
        total = e.arithmetic("mul", total, count)
    with e.build.block([TileType(I64)]) as body:
        _step(e, op, body.arguments[0], counts)
        e.build.end("continue")
    e.build.many("for", [(number, total, _first(e, "get_num_tile_blocks"))], [], blocks=[body])


def _first(e: TileEmitter, name: str) -> TileValue:
    """Where a tile block lies along the grid's axis, or how many there are."""
    found, *_ = e.build.many(name, [], [TileType(I32)] * 3)
    return e.converted(found, I64)


def _step(e: TileEmitter, op: tile.ParallelOp, number: TileValue, counts: Sequence[TileValue]) -> None:
    """Where step `number` of the grid begins along each dimension, and the grid's body for it."""
    steps, arguments = tile.integers(op.steps), op.body.block.args
    at: dict[int, TileValue] = {}
    dims = list(range(len(steps) - 1, -1, -1))
    group = op.group.value.data if op.group is not None else 1
    if group > 1:
        at[dims[1]], at[dims[0]] = _grouped(e, number, counts[dims[1]], counts[dims[0]], group)
        if len(dims) > 2:
            number = e.divided(number, e.arithmetic("mul", counts[dims[0]], counts[dims[1]]))
        dims = dims[2:]
    for dim in dims:
        at[dim] = e.remainder(number, counts[dim]) if dim else number
        if dim:
            number = e.divided(number, counts[dim])
    for dim, step in enumerate(steps):
        lower, upper = arguments[2 * dim], arguments[2 * dim + 1]
        begin = at[dim] if step == 1 else e.arithmetic("mul", at[dim], e.index(step))
        e.define(lower, begin)
        if any(not (isinstance(use.operation, tile.ForOp) and runs_once(use.operation)) for use in upper.uses):
            e.define(upper, e.at_most(e.add(begin, e.index(step)), e.get(op.extents[dim])))
    e.run(op.body.block)


def _grouped(
    e: TileEmitter, number: TileValue, outer: TileValue, inner: TileValue, group: int
) -> tuple[TileValue, TileValue]:
    """Which tile a step is when `group` rows of tiles are walked column after column."""
    in_plane = e.remainder(number, e.arithmetic("mul", outer, inner))
    size = e.index(group)
    whole = e.arithmetic("mul", size, inner)
    first = e.arithmetic("mul", e.divided(in_plane, whole), size)
    rows = e.at_most(e.arithmetic("sub", outer, first), size)
    rest = e.remainder(in_plane, whole)
    return e.add(first, e.remainder(rest, rows)), e.divided(rest, rows)


def _for(e: TileEmitter, op: tile.ForOp) -> None:
    index, *carried = op.body.block.args
    last = op.body.block.last_op
    assert isinstance(last, tile.YieldOp)
    initial = [e.get(value) for value in op.initial]
    if runs_once(op):
        e.define(index, e.get(op.lower))
        _define(e, carried, initial)
        e.run(op.body.block)
        _define(e, op.results, [e.get(value) for value in last.values])
        return
    kinds = [value.type for value in initial]
    with e.build.block([TileType(I64), *kinds]) as body:
        _define(e, [index, *carried], body.arguments)
        e.run(op.body.block)
        e.build.end("continue", [e.get(value) for value in last.values])
    bounds = (e.get(op.lower), e.get(op.upper), e.index(op.step.value.data))
    _define(e, op.results, e.build.many("for", [(*bounds, *initial)], kinds, blocks=[body]))


def _define(e: TileEmitter, values: Sequence[SSAValue], made: Sequence[TileValue]) -> None:
    for value, each in zip(values, made, strict=True):
        e.define(value, each)


def _if(e: TileEmitter, op: scf.IfOp) -> None:
    condition = e.get(op.cond)
    if not op.false_region.blocks and op.results:
        raise CompileError("a conditional with results has two arms")
    with e.build.block() as then:
        _arm(e, op.true_region.block)
    with e.build.block() as otherwise:
        if op.false_region.blocks:
            _arm(e, op.false_region.block)
        else:
            e.build.end("yield")
    kinds = [e.type_of(result) for result in op.results]
    _define(e, op.results, e.build.many("if", [condition], kinds, blocks=[then, otherwise]))


def _arm(e: TileEmitter, block: Block) -> None:
    e.run(block)
    last = block.last_op
    e.build.end("yield", [e.get(value) for value in last.operands] if isinstance(last, scf.YieldOp) else [])


CONTROL = cast("Mapping[type[Operation], Handler]", {tile.ParallelOp: _parallel, tile.ForOp: _for, scf.IfOp: _if})
"""What is written for the grid, loops and conditionals."""
