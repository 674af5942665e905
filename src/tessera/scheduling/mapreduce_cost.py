"""What a map or a reduction under a schedule makes one worker do. The passes are those of `mapreduce.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.machine import FMA_LATENCY, REORDERED, ROW_CYCLES, Machine, Work, largest_share
from tessera.scheduling.mapreduce_space import MapReduceProblem
from tessera.scheduling.schedule import KnobValue

LOOP_INSTRUCTIONS: Final = 4
ISSUE: Final = 4.0
CRITICAL: Final = 0.5
"""The part of a long chain's instructions that wait for each other; polynomials have two halves."""
GATHERED_CYCLES: Final = 2.5
"""Per element of a transposed operand that rows of a result gather: Zen 4 takes 40 for a vector of fp32."""
SHORT_RUN: Final = 512
"""Bytes of one row below which walking down rows misses what prefetchers fetch."""


def map_reduce_work(problem: MapReduceProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    width = cast(tuple[int, int], schedule["tile"])[1]
    outer, lanes = max(problem.outer, 1), max(problem.lanes, 1)
    rows, columns = outer, lanes
    if schedule["parallel"] == "lanes" and not problem.by_rows:
        columns = largest_share(lanes, width, problem.workers)
    else:
        rows = largest_share(outer, 1, problem.workers)
    share = rows * columns / (outer * lanes)
    work = Work(_arithmetic(problem, schedule, rows, columns, rates), {})
    _traffic(problem, schedule, share, rates, work)
    return work


def _arithmetic(
    problem: MapReduceProblem, schedule: Mapping[str, KnobValue], rows: int, columns: int, rates: Machine
) -> float:
    (height, width), vector = cast(tuple[int, int], schedule["tile"]), rates.vector_bytes // 4
    unroll = max(1, width // vector)
    depth = 1 if problem.by_rows else max(problem.reduced, 1)
    again = 0 if schedule["keep"] else problem.again
    passes = max(problem.passes, 1)
    operations = problem.flops + again + 2 * passes  # a load and a store or an accumulation per pass
    # Half of the operations are no multiplications and go to other ports than the peak counts.
    arithmetic = (problem.flops + again) * rates.cycle_s * _cycles_per_operation(rates)
    issue = (operations + passes * LOOP_INSTRUCTIONS / unroll) / ISSUE * rates.cycle_s
    chain = FMA_LATENCY / unroll * rates.cycle_s if problem.reduced > 1 or problem.passes > 1 else 0.0
    # Vectors beside each other hide the latency of a long chain, as far as they are in flight together.
    in_flight = max(unroll, REORDERED / max(operations, 1))
    chain = max(chain, operations * CRITICAL * FMA_LATENCY / in_flight * rates.cycle_s)
    whole, rest = divmod(columns, width)
    vectors = whole * unroll + -(-rest // vector) * 1.5  # the rest is masked, one vector at a time
    trips = rows * depth * vectors
    starts = rows * (passes if problem.by_rows else passes * (whole + -(-rest // vector))) / height
    turning = _turning_cycles(height, vector) * rows * columns if problem.rows else 0.0
    return trips * max(arithmetic, issue, chain) + (starts * ROW_CYCLES + turning) * rates.cycle_s


def _turning_cycles(height: int, vector: int) -> float:
    """Per element of a transposed operand: gathered, or a share of the shuffles that exchange halves of vectors."""
    return GATHERED_CYCLES if height == 1 else math.log2(height) / min(height, vector)


def _cycles_per_operation(rates: Machine) -> float:
    return rates.vector_bytes / 4 * 2 / rates.flop_per_s["fp32"] / rates.cycle_s


def _traffic(
    problem: MapReduceProblem, schedule: Mapping[str, KnobValue], share: float, rates: Machine, work: Work
) -> None:
    bytes_in, bytes_out = problem.bytes_in * share, problem.bytes_out * share
    home = rates.home((problem.bytes_in + problem.bytes_out) / problem.workers)
    run = cast(tuple[int, int], schedule["tile"])[1] * 4
    short = not problem.by_rows and problem.reduced > 1 and run < SHORT_RUN
    work.move(home, bytes_in * (1 + (SHORT_RUN - run) / SHORT_RUN if short else 1.0))
    if schedule["nontemporal"]:
        work.move("DRAM", bytes_out)
    else:
        work.move(home, 2 * bytes_out)  # a line is fetched before it is written to
    repeats = max(problem.passes, 1) - 1
    if repeats:
        lines = max(problem.outer, 1) if problem.by_rows else max(problem.outer, 1) * max(1, problem.lanes * 4 // run)
        walked = problem.bytes_in / lines
        work.move(rates.home(walked), bytes_in * repeats)
        if schedule["keep"]:
            kept = problem.dear * share * problem.outer * problem.lanes * 4
            work.move(rates.home(walked + problem.dear * cast(int, schedule["keep"]) * 4), kept * repeats)
