"""What a walk of attention's gradient does under a schedule on a GPU, for its cost model.

Together both walks form seven products where one kernel with sums in memory would form five and attention itself two:
scores and their cotangents are formed again in each.
"""

from __future__ import annotations

from tessera.dtypes import DType, bf16
from tessera.scheduling.families.attention.gpu.cost import Product, Walk, predicted_registers
from tessera.scheduling.families.attention_gradient.gpu.rules import (
    GpuGradientProblem,
    registers_for_values,
    shared_bytes,
    sides,
    values_per_thread,
)
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_resources import BlockResources, ceil_div

_OPERATIONS = 4.5
"""Ordinary instructions for a score beside its exponential: a scale, a subtraction, a minimum, whether it is seen, half
a conversion."""
_COTANGENT_OPERATIONS = 2.5
"""For its cotangent: a subtraction, a product, half a conversion."""
_STEP_OPERATIONS = 4.0
"""For steps that change scores, and their derivatives."""


def blocks(schedule: Schedule, problem: GpuGradientProblem) -> int:
    """Programs of the grid."""
    held, extent = sides(schedule, problem)[0], problem.keys if problem.by_keys else problem.queries
    return problem.shared * (1 if problem.by_keys else problem.group) * -(-extent // held)


def resources(schedule: Schedule, problem: GpuGradientProblem) -> BlockResources:
    """What a block takes before any compiler is asked."""
    values, permitted = values_per_thread(schedule, problem), registers_for_values(schedule, problem)
    registers, spilled = predicted_registers(values, permitted, problem.limits.max_registers_per_thread)
    return BlockResources(registers, spilled, shared_bytes(schedule, problem), schedule.integer("warps"))


def gradient_walk(problem: GpuGradientProblem, schedule: Schedule) -> Walk:
    """The walk of one side."""
    rows, columns = sides(schedule, problem)
    widths = dict(zip("dv", schedule.integers("head"), strict=True))
    size, wide = problem.operand.itemsize, problem.accumulator.itemsize
    programs, length = blocks(schedule, problem), problem.queries if problem.by_keys else problem.keys
    turns = problem.group if problem.by_keys else 1
    longest = ceil_div(length, columns) * turns
    heads = problem.shared * (1 if problem.by_keys else problem.group)
    queries, both = problem.shared * problem.group * problem.queries, problem.head + problem.value_head
    has_cotangents = "d" in problem.sums or problem.scored
    numbers = 2 * wide if has_cotangents else wide
    return Walk(
        target=problem.target,
        operand=problem.operand,
        programs=programs,
        steps=programs * _seen_steps(problem, rows, columns, longest),
        longest=longest,
        rows=rows,
        columns=columns,
        products=_products(problem, rows, columns, widths, has_cotangents),
        operations=_OPERATIONS
        + (_COTANGENT_OPERATIONS if has_cotangents else 0.0)
        + (_STEP_OPERATIONS if problem.scored else 0.0),
        loaded_bytes=columns * both * size
        + (columns * numbers if problem.by_keys else 0)
        + rows * columns * problem.pair_bytes,
        held_bytes=rows * both * size,
        stored_bytes=rows * sum(getattr(problem, _EXTENTS[axis]) for axis in problem.sums) * size,
        memory_bytes=(queries + problem.shared * problem.keys) * both * size
        + queries * (numbers + problem.keys * problem.pair_bytes),
        shared_bytes=length * turns * (both * size + (numbers if problem.by_keys else 0)),
        heads=heads,
        resources=resources(schedule, problem),
    )


_EXTENTS = {"d": "head", "v": "value_head"}


def _products(
    problem: GpuGradientProblem, rows: int, columns: int, widths: dict[str, int], has_cotangents: bool
) -> tuple[Product, ...]:
    """Scores, their cotangents, and what is summed up."""
    narrow: DType = bf16 if problem.operand.itemsize == 1 else problem.operand
    formed = [Product(rows, columns, widths[axis], problem.operand) for axis in ("d", "v")[: 1 + has_cotangents]]
    return (*formed, *(Product(rows, widths[axis], columns, narrow, converts=True) for axis in problem.sums))


def _seen_steps(problem: GpuGradientProblem, rows: int, columns: int, longest: int) -> float:
    """Steps of a program in the mean: with `causal` about half of them where there are as many queries as keys."""
    if not problem.causal:
        return longest
    shorter = min(problem.queries, problem.keys)
    if problem.by_keys:
        mean = (problem.queries * (1 - shorter / (2 * max(problem.keys, 1))) + min(rows, shorter) / 2) * problem.group
    else:
        mean = problem.keys - shorter / 2 + min(rows, shorter) / 2
    return min(max(mean / columns + 0.5, 1.0), longest)
