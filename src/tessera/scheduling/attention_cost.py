"""What attention under a schedule makes one worker of a CPU do. The loops are those of `attention.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.attention_space import AttentionProblem
from tessera.scheduling.machine import FMA_LATENCY, Machine, Work, largest_share
from tessera.scheduling.mapreduce_cost import FUNCTION_OPERATIONS
from tessera.scheduling.schedule import KnobValue

SCORE_OPERATIONS: Final = FUNCTION_OPERATIONS["exp2"] + 6
"""Vector instructions per vector of scores beside the products: mask, maximum, difference, power, sum, load, store."""


def attention_work(problem: AttentionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    bm, bn = cast(tuple[int, int], schedule["tile"])
    rows = cast(int, schedule["rows"])
    heads = math.prod(problem.batch)
    if schedule["parallel"] == "batch" and problem.batch:
        share = largest_share(problem.batch[0], 1, problem.workers) / max(problem.batch[0], 1)
    else:
        share = largest_share(problem.queries, bm, problem.workers) / max(problem.queries, 1)
    size = problem.accumulator.itemsize
    cycle_s = rates.cycle_s * size / 4
    blocks = -(-problem.queries // bm)
    seen = problem.pairs / max(problem.queries * problem.keys * heads, 1)
    # Whole register tiles are computed, whatever of them is used.
    keys = -(-max(problem.keys, 1) // rows) * rows * seen
    values = -(-problem.value_head // rows) * rows
    vectors = bm // problem.lanes
    multiplied = vectors * (problem.head + values) * keys
    waiting = FMA_LATENCY * 2 / (rows * vectors)  # a register tile smaller than what is in flight waits for itself
    stepped = vectors * (values / bn * 3 + SCORE_OPERATIONS / 2) * keys
    seconds = heads * blocks * (multiplied * max(1.0, waiting) / 2 + stepped) * cycle_s
    work = Work(share * seconds, {})
    read = (problem.head + problem.value_head) * problem.keys * problem.operand.itemsize
    work.move(rates.home(read), share * heads * blocks * read * seen)
    work.move(rates.home(bm * (bn + problem.head + values) * size), share * heads * blocks * multiplied / rows * size)
    written = problem.queries * (problem.head + problem.value_head) * problem.operand.itemsize
    work.move("DRAM", share * heads * (written + read))
    return work
