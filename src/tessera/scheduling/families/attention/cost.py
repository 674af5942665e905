"""What attention under a schedule makes one worker of a CPU do.

The loops are those of `attention/blocks.py` and `attention/decode.py`; the constants were fitted to their times on
Zen 4, with the exponentials, one product or both left out of the code.
"""

from __future__ import annotations

import math
from typing import Final

from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.families.attention.space import UNIT_ROWS, AttentionProblem, in_unit
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, smaller, where
from tessera.scheduling.model.machine import DRAM, Machine, Work, largest_share

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


def attention_work(problem: AttentionProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    by_head = schedule.equals("lanes", "head")
    share = _share(problem, schedule)
    heads = math.prod(problem.batch)
    blocks = divided(max(problem.queries, 1), _rows(schedule))
    seen = problem.visible / max(problem.queries * problem.keys * heads, 1)
    cycle_s = rates.cycle_s * problem.accumulator.itemsize / 4
    counted = problem, schedule, blocks, seen, rates.fma_latency
    decoding, blocked = _decoding(*counted), _blocked(*counted)
    work = Work(0.0)
    arithmetic, packing, *parts = (
        where(by_head, few, many) * share * heads * cycle_s for few, many in zip(decoding, blocked, strict=True)
    )
    work.compute_s, work.packing_s = arithmetic, packing
    work.parts |= zip(("FMA", "issue", "wait", "edges"), parts, strict=True)
    read = (problem.head + problem.value_head) * problem.keys * problem.operand.itemsize
    work.move(DRAM, share * heads * read)
    work.move(rates.home(read), share * heads * larger(blocks * seen - 1, 0.0) * read)
    written = problem.queries * (problem.head + problem.value_head) * problem.operand.itemsize
    work.move(DRAM, share * heads * written)
    return work


def _rows(schedule: Knobs) -> Number:
    """Queries that are multiplied with a key while it is at hand: of a register tile with heads along lanes, else of a
    block, which is at least a panel.
    """
    columns = schedule.integers("micro")[1]
    return where(schedule.equals("lanes", "head"), columns, larger(schedule.integers("tile")[0], columns))


def _share(problem: AttentionProblem, schedule: Knobs) -> Number:
    """The part of all work that the busiest worker has."""
    parts = schedule.integer(PARTS)
    extent = max(problem.queries, 1)
    share = largest_share(extent, _rows(schedule), problem.workers) / extent
    for name, axis in (("batch", 0), ("heads", 1)):
        if axis < len(problem.batch):
            even = largest_share(problem.batch[axis], 1, problem.workers) / max(problem.batch[axis], 1)
            share = where(schedule.equals("parallel", name), even, share)
    return where(parts > 1, largest_share(parts, 1, problem.workers) / parts, share)


def _blocked(
    problem: AttentionProblem, schedule: Knobs, blocks: Number, seen: float, latency: int
) -> tuple[Number, ...]:
    """Cycles of one head with queries along lanes: of arithmetic, of packing, and of arithmetic's parts: multiplying,
    all else that is counted in instructions, waiting, and the edges of register tiles.
    """
    bn = smaller(schedule.integers("tile")[1], max(problem.keys, 1))
    mr, nr = schedule.integers("micro")
    panels, vectors = divided(max(problem.queries, 1), nr), larger(nr // problem.lanes, 1)
    # Whole register tiles are computed, whatever of them is used.
    keys, values = (divided(max(extent, 1), mr) * mr for extent in (problem.keys, problem.value_head))
    unit, together = in_unit(schedule, problem), 2 if problem.pairs else 1
    step = where(unit, UNIT_ROWS, together)  # in which the matrix unit, too, spends a cycle per vector of sums
    tile = larger(mr * vectors, latency)
    per_score = SCORE_CYCLES + EXPONENTIAL_CYCLES + (ROUNDING_CYCLES if problem.pairs else 0.0)
    steps = keys / mr * problem.head / step + values / mr * keys / step
    edges = keys / mr * TILE_CYCLES + values / mr * keys / bn * (TILE_CYCLES + SUMS_CYCLES * mr * vectors)
    scores = keys * vectors * per_score
    arithmetic = panels * seen * (steps * tile + edges + scores)
    packed = blocks * seen * keys * (problem.head + where(unit, 2, 1) * values) / (problem.lanes * together)
    turned = 2 * problem.queries * (problem.head + values) / problem.lanes
    waits = where(mr * vectors < latency, steps * latency, 0.0)
    parts = (panels * seen * cycles for cycles in (steps * mr * vectors, scores, waits, edges))
    return arithmetic, PACK_CYCLES * (packed + turned), *parts


def _decoding(
    problem: AttentionProblem, schedule: Knobs, blocks: Number, seen: float, latency: int
) -> tuple[Number, ...]:
    """The same of one head with its elements along lanes, where nothing is packed."""
    rows, queries = schedule.integers("micro")
    head, values = (divided(extent, problem.lanes) for extent in (problem.head, problem.value_head))
    widened = WIDENING_CYCLES if problem.operand is not problem.accumulator else 0.0
    waiting = larger(1.0, latency / (rows * queries))  # a tile smaller than what is in flight waits for itself
    products = queries * (head + values)
    others = queries * ACROSS_CYCLES + widened * (head + values) + queries * EXPONENTIAL_CYCLES / problem.lanes
    per_key = products + queries * head * (waiting - 1) + others
    pairs = blocks * seen * problem.keys
    waits = where(waiting > 1, queries * head * waiting, 0.0)
    return pairs * per_key, 0.0, pairs * products, pairs * others, pairs * waits, 0.0
