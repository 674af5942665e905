"""The grid, loops and conditionals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tessera.backend.triton.printer import Handler, Printer, Text
from tessera.ir import tile


def parallel(p: Printer, op: tile.ParallelOp) -> None:
    """Each program takes one step of each dimension; the grid's one axis counts them, last dimension fastest."""
    steps = tile.integers(op.steps)
    arguments = op.body.block.args
    # Indices are 64 bits wide: offsets into large tensors need not fit 32.
    number = "tl.program_id(0).to(tl.int64)"
    if len(steps) > 1:
        p.line(f"program = {number}")
        number = "program"
    for dim in range(len(steps) - 1, -1, -1):
        lower, upper = arguments[2 * dim], arguments[2 * dim + 1]
        extent, step = p.operand(op.extents[dim]), steps[dim]
        name = p.name(lower.name_hint or f"lower_{dim}")
        factor = f" * {step}" if step > 1 else ""
        if dim:
            count = p.name(f"{name}_programs")
            p.line(f"{count} = {extent}" if step == 1 else f"{count} = tl.cdiv({extent}, {step})")
            p.line(f"{name} = {number} % {count}{factor}")
            p.line(f"program = program // {count}")
        else:
            p.line(f"{name} = {number}{factor}")
        p.define(lower, Text(name))
        if _is_end_used(upper):
            p.bind(upper, f"min({name} + {step}, {extent})", inline=False)
    p.run(op.body.block)


def _is_end_used(upper: SSAValue) -> bool:
    """Whether the end of a program's share is needed; a loop over the share in whole steps does not need it."""
    return any(not (isinstance(use.operation, tile.ForOp) and _runs_once(use.operation)) for use in upper.uses)


def _runs_once(loop: tile.ForOp) -> bool:
    """Whether a loop walks a program's share of one dimension, in steps no smaller than the share."""
    lower, upper = loop.lower, loop.upper
    if not (isinstance(lower, BlockArgument) and isinstance(upper, BlockArgument) and lower.block is upper.block):
        return False
    grid = lower.block.parent_op()
    if not isinstance(grid, tile.ParallelOp) or lower.index % 2 or upper.index != lower.index + 1:
        return False
    return loop.step.value.data >= tile.integers(grid.steps)[lower.index // 2]


def _for(p: Printer, op: tile.ForOp) -> None:
    index, *carried = op.body.block.args
    last = op.body.block.last_op
    assert isinstance(last, tile.YieldOp)
    if _runs_once(op):
        p.define(index, p.get(op.lower))
        _assign(p, carried, op.initial)
        p.run(op.body.block)
        _assign(p, op.results, last.values)
        return
    names = _assign(p, carried, op.initial)
    name = p.name(index.name_hint or "i")
    bounds = [p.text(op.lower), p.text(op.upper), str(op.step.value.data)]
    with p.nested(f"for {name} in range({', '.join(bounds)}):"):
        # Defined in here, because they change with every round.
        for argument, own in zip(op.body.block.args, [name, *names], strict=True):
            p.define(argument, Text(own))
        p.run(op.body.block)
        if names:
            p.line(f"{', '.join(names)} = {', '.join(p.text(value) for value in last.values)}")
    for result, own in zip(op.results, names, strict=True):
        p.define(result, Text(own))


def _assign(p: Printer, targets: Sequence[SSAValue], values: Sequence[SSAValue]) -> list[str]:
    """Gives each target a name of its own with the value's content; the names."""
    names = []
    for target, value in zip(targets, values, strict=True):
        name = p.name(target.name_hint)
        p.line(f"{name} = {p.text(value)}")
        p.define(target, Text(name))
        names.append(name)
    return names


def _if(p: Printer, op: scf.IfOp) -> None:
    names = [p.name(result.name_hint) for result in op.results]
    with p.nested(f"if {p.text(op.cond)}:") as header:
        _arm(p, op.true_region.block, names)
    if op.false_region.blocks:
        with p.nested("else:", after=header):
            _arm(p, op.false_region.block, names)
    for result, name in zip(op.results, names, strict=True):
        p.define(result, Text(name))


def _arm(p: Printer, block: Block, names: Sequence[str]) -> None:
    p.run(block)
    last = block.last_op
    if names and isinstance(last, scf.YieldOp):
        p.line(f"{', '.join(names)} = {', '.join(p.text(value) for value in last.operands)}")


CONTROL = cast("Mapping[type[Operation], Handler]", {tile.ParallelOp: parallel, tile.ForOp: _for, scf.IfOp: _if})
"""What is written for the grid, loops and conditionals."""
