"""Reductions apart from dear maps.

y = gelu(tanh(a));  y - mean(y, axis=0)      one kernel: y twice, for the means and for what they are taken from
                                             stages:     y -> memory;  y -> means;  y, means -> result

A kernel that reduces walks its rows, or down its columns, once for each pass, and in every one makes anew what it does
not keep; a row of 17 elements takes as long as one of 32, and a long chain over one vector waits for itself. Maps alone
do neither. What fusion saves is memory traffic. The cost model compares both.
"""

from __future__ import annotations

from typing import Final

from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops.counting import DEAR
from tessera.ops.record import family_of
from tessera.rewrite.fusion.depth import instructions_of
from tessera.rewrite.fusion.kernels import Bounds
from tessera.rewrite.fusion.reasons import operations_in
from tessera.scheduling.families.decomposition import DecomposableCall, Decomposition, Fused, Steps

CONVINCING: Final = 1.05
"""How much longer the model must expect one kernel to take: stages take memory. Where it errs it is in favour of one
kernel: of expressions that ran 1.3 to 2.9 times as fast in stages it expected 1.14 to 1.5.
"""
WORTH_COMPILING_S: Final = 3e-6
"""Seconds a call below which stages are not worth kernels of their own."""
STAGED: Final = Bounds(staged=True)


def has_dear_maps(kernel: ScheduleKernelOp) -> bool:
    """Whether a kernel holds maps that together are dear."""
    maps = (op for op in operations_in(kernel) if family_of(op.operator).is_map)
    return sum(instructions_of(op) for op in maps) >= DEAR


def _applies(case: DecomposableCall) -> bool:
    """A user's pins speak of the kernel; a fixed order of sums may not depend on what a model expects. A GPU's rows
    stay in registers.
    """
    if case.is_given or not case.once_of_kernel(has_dear_maps) or case.spec.reduced is None:
        return False
    return case.target.kind == "cpu" and not (case.pins or case.fixed_order) and case.is_divided(STAGED)


def _steps(case: DecomposableCall) -> Steps:
    return Steps((Fused(STAGED),))


def _pays(case: DecomposableCall) -> bool:
    alone = case.itself().seconds
    staged = sum(launch.seconds for launch in case.expected(_steps(case)))
    return alone > staged * CONVINCING and alone - staged > WORTH_COMPILING_S


STAGES = Decomposition(
    name="stages",
    why="the cost model expects reductions apart from dear maps to be faster: one kernel makes these once a pass",
    when="schedule",
    applies=_applies,
    pays=_pays,
    steps=_steps,
)
