"""Reductions over dimensions that do not merge into one axis, as their operands lie.

    sum(x.permute(0, 2, 1, 3), (1, 2))    ->    y = x, contiguous;   sum(y, (1, 2))

Where contiguous operands do not merge either (a bias of channels in a sum over whole images, a result that is a part of
another), the kernel runs operation by operation.
"""

from __future__ import annotations

from tessera.lazy.structures.structure import contiguous_strides
from tessera.scheduling.families.decomposition import (
    Array,
    Copied,
    DecomposableCall,
    Decomposition,
    Fused,
    Itself,
    Step,
    Steps,
    Workspace,
)
from tessera.scheduling.families.unfused import ONE_BY_ONE

NOT_MERGED = Decomposition(
    name="operation-by-operation",
    why="the reduced dimensions are no one axis, not even of contiguous copies of what is read",
    when="layout",
    applies=lambda case: not case.is_laid_out_contiguously() and case.is_divided(ONE_BY_ONE),
    steps=lambda case: Steps((Fused(ONE_BY_ONE, case.asked),)),
)


def _steps(case: DecomposableCall) -> Steps:
    copies: list[Step] = []
    workspaces: dict[str, Workspace] = {}
    arrays: dict[int, Array] = {}
    for number, (operand, _) in enumerate(case.arguments):
        copied = Array(f"copy{number}", operand.shape, contiguous_strides(operand.shape))
        workspaces[f"copy{number}"] = Workspace(operand.dtype, operand.shape)
        copies.append(Copied(Array(number, operand.shape, operand.strides), copied))
        arrays[number] = copied
    again = Itself({number: (None, array) for number, array in arrays.items()}, case.asked)
    return Steps((*copies, again), workspaces)


ON_COPIES = Decomposition(
    name="on-copies",
    why="the reduced dimensions are no one axis as the operands lie, but of contiguous copies",
    when="layout",
    applies=lambda case: True,
    steps=_steps,
)
