"""Products apart from the norm of their rows, and from each other.

    matmul(rms_norm(x), w)          ->    rows = rms_norm(x);   matmul(rows, w)
    silu(x @ w) * (x @ v)           ->    gate = x @ w;   silu(gate) * (x @ v)

A product that normalizes the rows of A on the way (`product/norms.py`) does so for each block of columns, and its
blocks hold all of K. Two products of one A have half of a register tile each.
"""

from __future__ import annotations

from typing import Final

from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops.record import family_of
from tessera.rewrite.fusion.kernels import Bounds
from tessera.rewrite.fusion.reasons import operations_in
from tessera.rewrite.fusion.siblings import products_of
from tessera.scheduling.families.decomposition import DecomposableCall, Decomposition, Fused, Steps
from tessera.scheduling.families.product import space
from tessera.scheduling.families.product.decompositions.few_columns import few_columns
from tessera.scheduling.families.product.problem import DEPTHS

OTHER_BLOCKS: Final = 1.15
"""How much longer the model must expect a product to take whose blocks are other ones when it normalizes rows: about so
much it errs by.
"""
STAGED: Final = Bounds(staged=True)
SINGLE: Final = Bounds(products=1)


def takes_rows(kernel: ScheduleKernelOp) -> bool:
    """Whether a product's kernel normalizes the rows of its first operand."""
    return any(family_of(operation.operator).reduces == "axis" for operation in operations_in(kernel))


def forms_several(kernel: ScheduleKernelOp) -> bool:
    """Whether a kernel has several products, of one A."""
    return len(products_of(operations_in(kernel))) > 1


def _takes_rows(case: DecomposableCall) -> bool:
    return case.once_of_kernel(takes_rows)


def _is_several(case: DecomposableCall) -> bool:
    return case.once_of_kernel(forms_several)


def _is_narrow(case: DecomposableCall) -> bool:
    """Whether a device makes the product alone: a GPU, or a CPU where it has few columns."""
    return case.target.kind == "gpu" or case.extents["n"] <= few_columns(case.target)


NORM_ALONE = Decomposition(
    name="norm-alone",
    why="programs of GPUs hold no whole rows of A, and few columns take A as it lies in memory",
    when="call",
    applies=lambda case: _takes_rows(case) and _is_narrow(case),
    steps=lambda case: Steps((Fused(STAGED, case.asked),)),
)
PRODUCTS_ALONE = Decomposition(
    name="products-alone",
    why="GPUs form products of one A one after the other, and so do CPUs where these have few columns",
    when="call",
    applies=lambda case: _is_several(case) and _is_narrow(case),
    steps=lambda case: Steps((Fused(SINGLE, case.asked),)),
)


def _is_faster_alone(case: DecomposableCall) -> bool:
    """Whether the products cannot be formed together, or the model expects that to take longer."""
    problem = case.problem()
    start = space.default_schedule(problem)
    if any(not rule.holds(start, problem) for rule in space.RULES):
        return True
    if case.fixed_order:  # sums are the same, but not how often they are rounded
        return False
    apart = case.estimate(problem.apart, space.default_schedule(problem.apart))
    launches = (problem.products - 1) * apart.terms["launch"]
    return case.estimate(problem, start).seconds > float(apart.seconds + launches)


PRODUCTS_FASTER_ALONE = Decomposition(
    name="products-faster-alone",
    why="the cost model expects products of one A to be faster one after the other, or no tile has room for both",
    when="call",
    applies=_is_several,
    pays=_is_faster_alone,
    steps=lambda case: Steps((Fused(SINGLE, case.asked),)),
)


def _norm_first(case: DecomposableCall) -> Steps:
    return Steps((Fused(STAGED),))


def _has_no_block(case: DecomposableCall) -> bool:
    """Whether the norm goes first whatever the model expects: pins speak of the kernel, a fixed order of sums may not
    depend on a model, and blocks that hold all of K have a largest depth.
    """
    return bool(case.pins) or case.fixed_order or case.extents["k"] > DEPTHS[-1]


NORM_FIRST = Decomposition(
    name="norm-first",
    why="no block holds so deep a K, the user pinned knobs, or sums have a fixed order",
    when="schedule",
    applies=lambda case: not case.is_given and _takes_rows(case) and _has_no_block(case),
    steps=_norm_first,
)


def _is_norm_faster_first(case: DecomposableCall) -> bool:
    kernel, rival = case.itself(), case.expected(_norm_first(case))
    # The model is trusted with a little less work in blocks of the same sizes, not with blocks of others.
    alike = any(launch.schedule["tile"] == kernel.schedule["tile"] for launch in rival)
    return kernel.seconds * (1.0 if alike else OTHER_BLOCKS) > sum(launch.seconds for launch in rival)


NORM_FASTER_FIRST = Decomposition(
    name="norm-faster-first",
    why="the cost model expects a norm of rows, and then the product, to be faster than both in one kernel",
    when="schedule",
    applies=lambda case: not case.is_given and _takes_rows(case),
    pays=_is_norm_faster_first,
    steps=_norm_first,
)

APART = (NORM_ALONE, PRODUCTS_ALONE, PRODUCTS_FASTER_ALONE, NORM_FIRST, NORM_FASTER_FIRST)
