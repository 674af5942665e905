"""What a map or a reduction under a schedule makes one worker do. The passes are those of `rows/lowering.py`."""

from __future__ import annotations

from typing import Final

import numpy as np

from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, no, smaller, where
from tessera.scheduling.model.machine import (
    DRAM,
    ROW_CYCLES,
    SPILL_CYCLES,
    Machine,
    Work,
    largest_share,
)

LOOP_INSTRUCTIONS: Final = 8
ISSUE: Final = 4.0
CRITICAL: Final = 0.75
"""The part of a long chain's instructions that wait for each other; polynomials have two halves."""
SCHEDULED: Final = 80
"""Instructions of chains that overlap, far fewer than the reorder buffer holds: fitted, as the others here, to softmax
and layer norm on Zen 4, whose schedulers hold 64 that wait for operands."""
GATHERED_CYCLES: Final = 2.5
"""Per element of a transposed operand that rows of a result gather: Zen 4 takes 40 for a vector of fp32."""
EXPOSED: Final = 0.75
"""The part of the time of later passes along a row in which nothing is loaded for the next one, unless that is
fetched ahead. Zen 4, layer norm of 512 x 4096: 1.2 times as long without."""
SHORT_RUN: Final = 512
"""Bytes of one row below which walking down rows misses what prefetchers fetch."""


def map_reduce_work(problem: MapReduceProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    width = schedule.integers("tile")[1]
    outer, lanes = max(problem.outer, 1), max(problem.lanes, 1)
    by_lanes = schedule.equals("parallel", "lanes") & (not problem.by_rows)
    columns = where(by_lanes, largest_share(lanes, width, problem.workers), lanes)
    rows = where(by_lanes, outer, largest_share(outer, 1, problem.workers))
    share = rows * columns / (outer * lanes)
    work = Work(0.0)
    _arithmetic(problem, schedule, rows, columns, rates, work)
    _traffic(problem, schedule, share, rates, work)
    return work


def _arithmetic(
    problem: MapReduceProblem, schedule: Knobs, rows: Number, columns: Number, rates: Machine, work: Work
) -> None:
    (height, width), vector = schedule.integers("tile"), rates.vector_bytes // 4
    unroll = larger(1, width // vector)
    depth = 1 if problem.by_rows else max(problem.reduced, 1)
    again = where(schedule.flag("keep"), 0, problem.again)
    passes = max(problem.passes, 1)
    operations = problem.flops + again + 2 * passes  # a load and a store or an accumulation per pass
    # Half of the operations are no multiplications and go to other ports than the peak counts.
    arithmetic = (problem.flops + again) * rates.cycle_s * _cycles_per_operation(rates)
    issue = (operations + passes * LOOP_INSTRUCTIONS / unroll) / ISSUE * rates.cycle_s
    sums = problem.reduced > 1 or problem.passes > 1
    # Vectors beside each other hide the latency of a long chain, as far as they are in flight together.
    in_flight = larger(unroll, SCHEDULED / larger(operations, 1))
    chain = operations * CRITICAL * rates.fma_latency / in_flight * rates.cycle_s
    chain = larger(chain, rates.fma_latency / unroll * rates.cycle_s if sums else 0.0)
    whole, rest = columns // width, columns % width
    masked = divided(rest, vector)
    trips = rows * depth * (whole * unroll + masked * 1.5)  # the rest is masked, one vector at a time
    starts = rows * (passes if problem.by_rows else passes * (whole + masked)) / height
    turning = _turning_cycles(height, vector) * rows * columns if problem.rows else 0.0
    edges = (starts * ROW_CYCLES + turning) * rates.cycle_s
    # Vectors beside each other need not be computed at the same time, the values of one must be.
    spilled = max(problem.live - problem.target.vector_registers, 0)
    spills = trips * SPILL_CYCLES * spilled * rates.cycle_s
    work.compute_s = trips * larger(larger(arithmetic, issue), chain) + edges + spills
    work.parts |= {
        "FMA": trips * arithmetic,
        "issue": trips * issue,
        "wait": trips * chain,
        "edges": edges,
        "spills": spills,
    }


def _turning_cycles(height: Number, vector: int) -> Number:
    """Per element of a transposed operand: gathered, or a share of the shuffles that exchange halves of vectors."""
    return where(height == 1, GATHERED_CYCLES, np.log2(height) / smaller(height, vector))


def _cycles_per_operation(rates: Machine) -> float:
    return rates.vector_bytes / 4 * 2 / rates.flop_per_s["fp32"] / rates.cycle_s


def _traffic(problem: MapReduceProblem, schedule: Knobs, share: Number, rates: Machine, work: Work) -> None:
    bytes_in, bytes_out = problem.bytes_in * share, problem.bytes_out * share
    home = rates.home((problem.bytes_in + problem.bytes_out) / problem.workers)
    run = schedule.integers("tile")[1] * 4
    short = (not problem.by_rows and problem.reduced > 1) & (run < SHORT_RUN)
    work.move(home, bytes_in * where(short, 1 + (SHORT_RUN - run) / SHORT_RUN, 1.0))
    streams = schedule.flag("nontemporal")
    work.move(DRAM, where(streams, bytes_out, 0.0))
    work.move(home, where(streams, 0.0, 2 * bytes_out))  # a line is fetched before it is written to
    repeats = max(problem.passes, 1) - 1
    if repeats and problem.by_rows:
        # The first pass along a row waits for memory, which has nothing to do in the later ones but for fetching ahead.
        near = rates.home(problem.bytes_in / max(problem.outer, 1)) < home
        reading = problem.bytes_in * share / rates.bandwidth(home)
        later = smaller(reading, work.compute_s * repeats / (repeats + 1))
        work.exposed_s = where(no(schedule.flag("ahead")) & near, later * EXPOSED, 0.0)
    if repeats:
        outer = max(problem.outer, 1)
        walked = problem.bytes_in / (outer if problem.by_rows else outer * larger(1, problem.lanes * 4 // run))
        work.move(rates.home(walked), bytes_in * repeats)
        keep = schedule.integer("keep")
        kept = problem.dear * share * problem.outer * problem.lanes * 4
        work.move(rates.home(walked + problem.dear * keep * 4), where(keep > 0, kept * repeats, 0.0))
