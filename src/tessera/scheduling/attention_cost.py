"""What attention under a schedule makes one worker of a CPU do.

The loops are those of `attention_blocks.py` and `attention_decode.py`; the constants were fitted to their times on
Zen 4, with the exponentials, one product or both left out of the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.attention_parts import PARTS
from tessera.scheduling.attention_space import AttentionProblem
from tessera.scheduling.machine import FMA_LATENCY, Machine, Work, largest_share
from tessera.scheduling.schedule import KnobValue

EXPONENTIAL_CYCLES: Final = 8.0
"""Cycles per vector of scores from score to weight, the sum of weights included."""
ROUNDING_CYCLES: Final = 3.0
"""Cycles per vector of weights that is rounded to bf16."""
SCORE_CYCLES: Final = 4.0
"""Cycles per vector of scores beside the product: maximum, store."""
TILE_CYCLES: Final = 60.0
"""Entering and leaving a register tile: its sums cleared or brought, the pipeline filled and drained."""
SUMS_CYCLES: Final = 3.0
"""Cycles per vector of sums and block of keys: load, scale down, store."""
PACK_CYCLES: Final = 3.5
"""Cycles per vector of packing keys and values; transposing, as queries and results are, takes twice that."""
ACROSS_CYCLES: Final = 4.0
"""Cycles per score that is a sum across lanes."""
WIDENING_CYCLES: Final = 0.5
"""Cycles per vector that is converted to the accumulator's dtype as it is read."""


def attention_work(problem: AttentionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    share = _share(problem, schedule)
    heads = math.prod(problem.batch)
    rows = cast(tuple[int, int], schedule["micro"])[1] if schedule["lanes"] == "head" else _block(schedule)
    blocks = -(-max(problem.queries, 1) // rows)
    seen = problem.visible / max(problem.queries * problem.keys * heads, 1)
    count = _decoding if schedule["lanes"] == "head" else _blocked
    cycle_s = rates.cycle_s * problem.accumulator.itemsize / 4
    work = Work(0.0, {})
    work.compute_s, work.packing_s = (
        share * heads * cycles * cycle_s for cycles in count(problem, schedule, blocks, seen)
    )
    read = (problem.head + problem.value_head) * problem.keys * problem.operand.itemsize
    work.move("DRAM", share * heads * read)
    work.move(rates.home(read), share * heads * max(blocks * seen - 1, 0.0) * read)
    written = problem.queries * (problem.head + problem.value_head) * problem.operand.itemsize
    work.move("DRAM", share * heads * written)
    return work


def _block(schedule: Mapping[str, KnobValue]) -> int:
    """Queries of a block, which is at least a panel."""
    return max(cast(tuple[int, int], schedule["tile"])[0], cast(tuple[int, int], schedule["micro"])[1])


def _share(problem: AttentionProblem, schedule: Mapping[str, KnobValue]) -> float:
    """The part of all work that the busiest worker has."""
    parts = cast(int, schedule[PARTS])
    if parts > 1:
        return largest_share(parts, 1, problem.workers) / parts
    axis = {"batch": 0, "heads": 1}.get(str(schedule["parallel"]), -1)
    if 0 <= axis < len(problem.batch):
        extent, step = problem.batch[axis], 1
    else:
        extent = problem.queries
        step = cast(tuple[int, int], schedule["micro"])[1] if schedule["lanes"] == "head" else _block(schedule)
    return largest_share(extent, step, problem.workers) / max(extent, 1)


def _blocked(
    problem: AttentionProblem, schedule: Mapping[str, KnobValue], blocks: int, seen: float
) -> tuple[float, float]:
    """Cycles of one head with queries along lanes: of arithmetic, and of packing."""
    bn = min(cast(tuple[int, int], schedule["tile"])[1], max(problem.keys, 1))
    mr, nr = cast(tuple[int, int], schedule["micro"])
    panels, vectors = -(-max(problem.queries, 1) // nr), max(nr // problem.lanes, 1)
    # Whole register tiles are computed, whatever of them is used.
    keys, values = (-(-max(extent, 1) // mr) * mr for extent in (problem.keys, problem.value_head))
    step = 2 if problem.pairs else 1
    tile = max(float(mr * vectors), FMA_LATENCY)
    scores = keys / mr * (problem.head / step * tile + TILE_CYCLES)
    sums = values / mr * (keys / step * tile + keys / bn * (TILE_CYCLES + SUMS_CYCLES * mr * vectors))
    per_score = SCORE_CYCLES + EXPONENTIAL_CYCLES + (ROUNDING_CYCLES if problem.pairs else 0.0)
    arithmetic = panels * seen * (scores + sums + keys * vectors * per_score)
    packed = blocks * seen * keys * (problem.head + values) / (problem.lanes * step)
    turned = 2 * problem.queries * (problem.head + values) / problem.lanes
    return arithmetic, PACK_CYCLES * (packed + turned)


def _decoding(
    problem: AttentionProblem, schedule: Mapping[str, KnobValue], blocks: int, seen: float
) -> tuple[float, float]:
    """Cycles of one head with its elements along lanes: of arithmetic; nothing is packed."""
    rows, queries = cast(tuple[int, int], schedule["micro"])
    head, values = (-(-extent // problem.lanes) for extent in (problem.head, problem.value_head))
    widened = WIDENING_CYCLES if problem.operand is not problem.accumulator else 0.0
    waiting = max(1.0, FMA_LATENCY / (rows * queries))  # a tile smaller than what is in flight waits for itself
    scores = queries * (head * waiting + ACROSS_CYCLES) + widened * head
    per_key = scores + queries * values + widened * values + queries * EXPONENTIAL_CYCLES / problem.lanes
    return blocks * seen * problem.keys * per_key, 0.0
