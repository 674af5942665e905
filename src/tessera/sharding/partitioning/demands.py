"""What values of a local program are cut to by all that reads them, so that they can be made so to begin with.

A sum over devices of which each keeps a part is scattered instead: half the bytes. What every device computes alike, of
copies, and then cuts, each computes a part of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from tessera.lazy.layouts import Layout
from tessera.sharding.partitioning.program import Compute, LocalProgram, ShardMove, operands_of
from tessera.sharding.partitioning.rules import ShardingRule, ShardingStrategy, rule_of, strategy

COPIES: Final = "copies"
"""How an operator is computed that every device computes alike."""


def demands(program: LocalProgram, ways: Collection[int]) -> dict[int, Layout]:
    """By number the layout that all readers of a value cut it to. `ways` are the moves that lead from layout to layout,
    and which another way may replace.
    """
    readers: list[list[int]] = [[] for _ in program.instructions]
    for number, instruction in enumerate(program.instructions):
        for operand in operands_of(instruction):
            readers[operand].append(number)
    found: dict[int, Layout] = {}
    split: dict[int, Sequence[Layout]] = {}
    for number in reversed(range(len(program.instructions))):
        if number in program.roots:
            continue
        wanted = {_wanted_by(program, reader, number, found, split, ways) for reader in readers[number]}
        (layout, *others) = wanted or {None}
        if layout is None or others or layout is program.values[number].layout:
            continue
        instruction = program.instructions[number]
        if isinstance(instruction, ShardMove) and number in ways:
            found[number] = layout
        elif isinstance(instruction, Compute) and instruction.rule == COPIES:
            operands = _operands_for(program, instruction, number, layout)
            if operands is not None:
                found[number], split[number] = layout, operands
    return found


def _wanted_by(
    program: LocalProgram,
    reader: int,
    number: int,
    found: dict[int, Layout],
    split: dict[int, Sequence[Layout]],
    ways: Collection[int],
) -> Layout | None:
    """What one reader cuts a value to; None where it reads it as it is."""
    instruction = program.instructions[reader]
    if isinstance(instruction, ShardMove):
        is_cut = reader in ways and instruction.step.kind == "Slice"
        return found.get(reader, instruction.step.target) if is_cut else None
    if reader not in split:
        return None
    layouts = {layout for place, layout in zip(operands_of(instruction), split[reader], strict=True) if place == number}
    return layouts.pop() if len(layouts) == 1 else None


def _operands_for(program: LocalProgram, compute: Compute, number: int, wanted: Layout) -> Sequence[Layout] | None:
    """How operands lie where a device computes only what it has of the result in a layout; None where it cannot."""
    values = [program.values[operand] for operand in compute.operands]
    shapes, dtypes = tuple(value.shape for value in values), tuple(value.dtype for value in values)
    rule = rule_of(compute.operator, compute.attributes, shapes, dtypes, program.values[number].shape)
    chosen = None if rule is None else strategy_for(rule, wanted)
    return None if chosen is None else chosen[0].operands


def strategy_for(rule: ShardingRule, wanted: Layout) -> tuple[ShardingStrategy, dict[str, str]] | None:
    """The strategy by which each device computes what it has of the result in a layout, and the anchor's axis that each
    axis of the mesh splits; None where there is none.
    """
    split_by: dict[str, str] = {}
    for by, axes in zip(rule.result, wanted.dims, strict=True):
        if axes and by is None:
            return None
        split_by |= dict.fromkeys(axes, by or "")
    chosen = strategy(rule, wanted.mesh, split_by, [axis for axes in wanted.dims for axis in axes], {})
    return None if chosen is None or chosen.result is not wanted else (chosen, split_by)
