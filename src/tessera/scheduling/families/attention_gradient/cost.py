"""What the gradient of attention under a schedule makes one worker of a CPU do, by the loops of `nest.py`.

Cycles beside products are those of attention (`attention/cost.py`); they were not fitted anew.
"""

from __future__ import annotations

import math

from tessera.scheduling.families.attention.cost import EXPONENTIAL_CYCLES, PACK_CYCLES, SCORE_CYCLES, TILE_CYCLES
from tessera.scheduling.families.attention_gradient.space import GradientProblem
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, where
from tessera.scheduling.model.machine import DRAM, Machine, Work, largest_share


def gradient_work(problem: GradientProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    bm, bn = schedule.integers("tile")
    mr, nr = schedule.integers("micro")
    vectors = larger(nr // problem.lanes, 1)
    heads = math.prod(problem.shared) * problem.group
    seen = problem.visible / max(problem.queries * problem.keys * heads, 1)
    blocks = divided(max(problem.queries, 1), bm) * divided(max(problem.keys, 1), bn)
    tiles = blocks * (bm * bn / (mr * nr)) * seen
    of_heads, of_values = problem.products
    steps = tiles * (of_heads * problem.head + of_values * problem.value_head)
    tile = larger(mr * vectors, rates.fma_latency)
    scores = tiles * mr * vectors * (SCORE_CYCLES + EXPONENTIAL_CYCLES)
    edges = tiles * (of_heads + of_values) * TILE_CYCLES
    packed = blocks * seen * bm * (problem.head + problem.value_head) / problem.lanes * PACK_CYCLES
    cycle_s = rates.cycle_s * problem.accumulator.itemsize / 4 * heads * _share(problem, schedule)
    work = Work(0.0)
    work.compute_s, work.packing_s = (steps * tile + scores + edges) * cycle_s, packed * cycle_s
    waits = where(mr * vectors < rates.fma_latency, steps * (rates.fma_latency - mr * vectors), 0.0)
    parts = steps * mr * vectors, scores, waits, edges
    work.parts |= zip(("FMA", "issue", "wait", "edges"), (cycles * cycle_s for cycles in parts), strict=True)
    size = problem.operand.itemsize + problem.accumulator.itemsize
    moved = (problem.queries * problem.group + problem.keys) * (problem.head + problem.value_head) * size
    work.move(DRAM, _share(problem, schedule) * math.prod(problem.shared) * moved)
    return work


def _share(problem: GradientProblem, schedule: Knobs) -> Number:
    """The part of all work that the busiest worker has."""
    share: Number = 1.0
    for name, axis in (("batch", 0), ("heads", 1)):
        if axis < len(problem.shared):
            even = largest_share(problem.shared[axis], 1, problem.workers) / max(problem.shared[axis], 1)
            share = where(schedule.equals("parallel", name), even, share)
    return share
