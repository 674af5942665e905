"""Levels of a local program: what is computed between two rounds of exchanges."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.sharding.program import Compute, Literal, LocalProgram, Read, Regard, ShardMove


@dataclass
class Level:
    """Values by number. `members` are computed here, of `used` ones that are there; `wanted` are those of them that are
    read elsewhere; `exchanges` run afterwards, in order.
    """

    members: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    exchanges: list[int] = field(default_factory=list)


def levels_of(program: LocalProgram) -> list[Level]:
    """The levels of a program, in the order in which they run. Literals are members wherever they are read."""
    heights: list[int] = []
    for instruction in program.instructions:
        below = max([heights[each] for each in _operands(instruction)], default=0)
        heights.append(below + _is_exchange(instruction))
    levels = [Level() for _ in range(max(heights, default=0) + 1)]
    wanted = set(program.roots)
    for number, instruction in enumerate(program.instructions):
        if isinstance(instruction, Read | Literal):
            continue
        level = levels[heights[number] - _is_exchange(instruction)]
        if _is_exchange(instruction):
            level.exchanges.append(number)
        for operand in _operands(instruction):
            if isinstance(program.instructions[operand], Literal):
                if operand not in level.members:
                    level.members.append(operand)
            elif heights[operand] < heights[number]:
                wanted.add(operand)
        if not _is_exchange(instruction):
            level.members.append(number)
    for root in program.roots:
        if isinstance(program.instructions[root], Literal) and root not in levels[0].members:
            levels[0].members.append(root)
    for level in levels:
        level.wanted = [number for number in level.members if number in wanted]
        members = set(level.members)
        needed = [each for number in level.members for each in _operands(program.instructions[number])]
        level.used = list(dict.fromkeys([each for each in needed if each not in members]))
    return levels


def _operands(instruction: object) -> tuple[int, ...]:
    if isinstance(instruction, Compute):
        return instruction.operands
    return (instruction.operand,) if isinstance(instruction, ShardMove | Regard) else ()


def _is_exchange(instruction: object) -> bool:
    return isinstance(instruction, ShardMove) and not instruction.step.is_local
