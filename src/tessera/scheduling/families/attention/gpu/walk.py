"""What attention does under a schedule on a GPU, for its cost model: a walk over keys for each block of queries."""

from __future__ import annotations

import math

from tessera.scheduling.families.attention.gpu.cost import Product, Walk, predicted_registers
from tessera.scheduling.families.attention.gpu.rules import (
    registers_for_values,
    shared_bytes,
    values_per_thread,
    weights_dtype,
)
from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_resources import BlockResources, ceil_div

OPERATIONS = 5.0
"""Ordinary instructions for a score beside its exponential: its share of a maximum, a scaled subtraction, of a sum, of
the smaller sums, half a conversion."""
MASK_OPERATIONS = 2.0
"""What a mask adds to them."""


def blocks(schedule: Schedule, problem: AttentionProblem) -> int:
    """Programs of the grid, of one part of the keys."""
    return math.prod(problem.batch) * -(-problem.queries // schedule.integers("tile")[0])


def parts_of(schedule: Schedule) -> int:
    """Parts of the keys."""
    return schedule.integer(PARTS) if PARTS in schedule else 1


def resources(schedule: Schedule, problem: AttentionProblem) -> BlockResources:
    """What a block takes before any compiler is asked."""
    assert problem.target.gpu is not None
    values, permitted = values_per_thread(schedule, problem), registers_for_values(schedule, problem)
    registers, spilled = predicted_registers(values, permitted, problem.target.gpu.max_registers_per_thread)
    return BlockResources(registers, spilled, shared_bytes(schedule, problem), schedule.integer("warps"))


def attention_walk(problem: AttentionProblem, schedule: Schedule) -> Walk:
    """The walk. Keys and values of heads that share them are counted as often as a block reads them, once a head."""
    rows, columns = schedule.integers("tile")
    steps = ceil_div(-(-problem.keys // parts_of(schedule)), columns)
    return walk_of(problem, schedule, steps, seen_steps(problem, rows, columns, steps), columns)


def seen_steps(problem: AttentionProblem, rows: int, columns: int, most: int) -> float:
    """Steps of a program in the mean, of `most` at most: with `causal` those up to its last query."""
    if not problem.causal:
        return most
    shorter = min(problem.queries, problem.keys)
    mean = (2 * problem.keys - shorter + min(rows, shorter)) / 2
    return min(max(mean / columns + 0.5, 1.0), most)


def walk_of(problem: AttentionProblem, schedule: Schedule, longest: int, mean: float, loaded_keys: float) -> Walk:
    """The walk whose programs take `longest` steps at most, `mean` in the mean, and load so many keys in each."""
    rows, columns = schedule.integers("tile")
    head, value_head = schedule.integers("head")
    size, heads, parts = problem.operand.itemsize, math.prod(problem.batch), parts_of(schedule)
    programs = blocks(schedule, problem) * parts
    mask_bytes = 0 if problem.mask is None else problem.mask.itemsize
    weights = weights_dtype(problem.operand, problem.target)
    head_bytes = (problem.head + problem.value_head) * size
    stored = problem.accumulator.itemsize if parts > 1 else size
    results = heads * problem.queries * problem.value_head
    rows_bytes = heads * (problem.queries + problem.keys) * head_bytes
    return Walk(
        target=problem.target,
        operand=problem.operand,
        programs=programs,
        steps=programs * mean,
        longest=longest,
        rows=rows,
        columns=columns,
        products=(
            Product(rows, columns, head, problem.operand),
            Product(rows, value_head, columns, weights, converts=True),
        ),
        operations=OPERATIONS + (0.0 if problem.mask is None else MASK_OPERATIONS),
        loaded_bytes=loaded_keys * head_bytes + rows * columns * mask_bytes,
        held_bytes=min(rows, problem.queries) * problem.head * size,
        stored_bytes=min(rows, problem.queries) * problem.value_head * stored,
        memory_bytes=rows_bytes + problem.queries * problem.keys * mask_bytes,
        shared_bytes=problem.keys * head_bytes,
        heads=heads,
        resources=resources(schedule, problem),
        joined_bytes=2 * parts * results * problem.accumulator.itemsize if parts > 1 else 0.0,
    )
