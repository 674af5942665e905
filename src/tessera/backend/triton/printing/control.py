"""The grid, loops and conditionals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.backend.triton.printing.printer import Handler, Printer, Text
from tessera.backend.triton.printing.tile_clock import is_timed, reading
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import runs_once


def parallel(p: Printer, op: tile.ParallelOp) -> None:
    """Each program takes one step of each dimension, or walks all steps with the others; the grid's one axis counts
    them, last dimension fastest, or group after group of steps of the last dimension but one.
    """
    steps = tile.integers(op.steps)
    arguments = op.body.block.args
    names = [p.name(arguments[2 * dim].name_hint or f"lower_{dim}") for dim in range(len(steps))]
    if op.grid is None:
        # Indices are 64 bits wide: offsets into large tensors need not fit 32.
        number = "tl.program_id(0).to(tl.int64)"
        with reading(p, number, is_timed(op)):
            _step(p, op, names, number, {})
        return
    counts = {dim: _count(p, op, names, dim) for dim in reversed(range(len(steps)))}
    total = " * ".join(counts[dim] for dim in range(len(steps)))
    bounds = ["tl.program_id(0)", total, "tl.num_programs(0)"]
    if op.grid.data == "fused":
        bounds.append("flatten=True")
    number = p.name("step")
    with p.nested(f"for {number} in tl.range({', '.join([*bounds, *_loop_options(op)])}):"):
        position = f"tl.cast({number}, tl.int64)"
        with reading(p, position, is_timed(op)):
            _step(p, op, names, position, counts)


def _loop_options(op: tile.ParallelOp | tile.ForOp) -> list[str]:
    """What the compiler is told of a loop."""
    options = [] if op.warp_specialize is None else ["warp_specialize=True"]
    kernel = op.parent_op()
    while kernel is not None and not isinstance(kernel, tile.KernelOp):
        kernel = kernel.parent_op()
    if kernel is not None and kernel.accumulators is not None and kernel.accumulators.value.data == 1:
        options.append("disallow_acc_multi_buffer=True")
    return options


def _step(p: Printer, op: tile.ParallelOp, names: Sequence[str], number: str, counts: dict[int, str]) -> None:
    """Writes where step `number` of the grid begins along each dimension, and the grid's body for it. `counts` holds
    the numbers of steps that have been written before.
    """
    steps = tile.integers(op.steps)
    arguments = op.body.block.args
    if len(steps) > 1:
        p.line(f"program = {number}")
        number = "program"
    grouped = op.group.value.data if op.group is not None else 1
    dims = list(range(len(steps) - 1, -1, -1))
    if grouped > 1:
        inner, outer = (counts.get(dim) or _count(p, op, names, dim) for dim in dims[:2])
        _grouped(p, (names[dims[1]], names[dims[0]]), (outer, inner), (steps[dims[1]], steps[dims[0]]), grouped)
        if len(dims) > 2:
            p.line(f"program = program // ({inner} * {outer})")
        dims = dims[2:]
    for dim in dims:
        factor = f" * {steps[dim]}" if steps[dim] > 1 else ""
        if dim:
            count = counts.get(dim) or _count(p, op, names, dim)
            p.line(f"{names[dim]} = {number} % {count}{factor}")
            p.line(f"program = program // {count}")
        else:
            p.line(f"{names[dim]} = {number}{factor}")
    for dim, name in enumerate(names):
        lower, upper = arguments[2 * dim], arguments[2 * dim + 1]
        p.define(lower, Text(name))
        if _is_end_used(upper):
            p.bind(upper, f"min({name} + {steps[dim]}, {p.operand(op.extents[dim])})", inline=False)
    p.run(op.body.block)


def _count(p: Printer, op: tile.ParallelOp, names: Sequence[str], dim: int) -> str:
    """Writes the number of programs along a dimension; its name."""
    extent, step = p.operand(op.extents[dim]), tile.integers(op.steps)[dim]
    count = p.name(f"{names[dim]}_programs")
    p.line(f"{count} = {extent}" if step == 1 else f"{count} = tl.cdiv({extent}, {step})")
    return count


def _grouped(p: Printer, names: tuple[str, str], counts: tuple[str, str], steps: tuple[int, int], group: int) -> None:
    """Writes where a program's tile begins when `group` rows of tiles are walked column after column."""
    in_plane, first, rows = p.name("in_plane"), p.name("first"), p.name("rows")
    p.line(f"{in_plane} = program % ({counts[0]} * {counts[1]})")
    p.line(f"{first} = {in_plane} // ({group} * {counts[1]}) * {group}")
    p.line(f"{rows} = min({counts[0]} - {first}, {group})")
    p.line(f"{names[0]} = ({first} + {in_plane} % ({group} * {counts[1]}) % {rows}) * {steps[0]}")
    p.line(f"{names[1]} = {in_plane} % ({group} * {counts[1]}) // {rows} * {steps[1]}")


def _is_end_used(upper: SSAValue) -> bool:
    """Whether the end of a program's share is needed; a loop over the share in whole steps does not need it."""
    return any(not (isinstance(use.operation, tile.ForOp) and runs_once(use.operation)) for use in upper.uses)


def _for(p: Printer, op: tile.ForOp) -> None:
    index, *carried = op.body.block.args
    last = op.body.block.last_op
    assert isinstance(last, tile.YieldOp)
    if runs_once(op):
        p.define(index, p.get(op.lower))
        _assign(p, carried, op.initial)
        p.run(op.body.block)
        _assign(p, op.results, last.values)
        return
    names = _assign(p, carried, op.initial)
    name = p.name(index.name_hint or "i")
    bounds = [p.text(op.lower), p.text(op.upper), str(op.step.value.data)]
    options = _loop_options(op)
    counter = "tl.range" if options else "range"
    with p.nested(f"for {name} in {counter}({', '.join([*bounds, *options])}):"):
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
