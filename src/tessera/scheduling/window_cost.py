"""What a reduction over windows makes one worker do. The loops are those of `window.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.machine import FMA_LATENCY, Machine, Work, largest_share
from tessera.scheduling.schedule import KnobValue
from tessera.scheduling.window_space import WindowProblem

LOADS: Final = 2.0
"""Vectors of 32 bytes that a core loads in a cycle, on every x86 since 2013; wider ones take their share of that."""
MASKED: Final = 2.0
"""How much longer a row takes that is done on its own, under masks, at the edge of the image."""
STEP_CYCLES: Final = 6
"""Loop and addresses of a register tile."""


def window_work(problem: WindowProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    rows, vectors = cast(int, schedule["rows"]), cast(int, schedule["vectorize"])
    block_rows = cast(tuple[int, int], schedule["tile"])[0]
    by_columns = problem.lanes_axis == "x"
    if schedule["parallel"] == "rows":
        height = problem.result[0]
        share = largest_share(height, block_rows if by_columns else 1, problem.workers) / max(height, 1)
    else:
        first = problem.images if by_columns or problem.images > 1 else problem.result[0]
        share = largest_share(first, 1, problem.workers) / max(first, 1)
    side = 0 if by_columns else 1
    reach, stride = problem.geometry.reach(side), problem.geometry.stride[side]
    kernel = problem.geometry.kernel
    edge = min(1.0, (-(-problem.geometry.padding[side] // stride) * 2 + (problem.rows % rows)) / max(problem.rows, 1))
    # Of a register tile: loads of the image, each used by several rows; operands of taps; and the arithmetic.
    distinct = (rows - 1) * stride + reach + 1 if problem.geometry.dilation[side] == 1 else rows * kernel[side]
    loads: float = min(distinct, rows * kernel[side]) * kernel[1 - side] * vectors
    loads += problem.taps * problem.free * (vectors if not by_columns else 1)
    if by_columns and problem.geometry.stride[1] > 1:
        loads *= 2.5
    wide = rates.vector_bytes / 32
    arithmetic = rows * vectors * (problem.taps * problem.operations + problem.after)
    flops_per_cycle = rates.flop_per_s["fp32"] * rates.cycle_s / (2 * rates.vector_bytes / 4)
    sums = max(1.0, FMA_LATENCY * flops_per_cycle / (rows * vectors))
    cycles = max(arithmetic / flops_per_cycle * sums, loads * wide / LOADS) + STEP_CYCLES
    steps = -(-problem.lanes // (vectors * problem.vector)) * problem.rows / rows
    others = problem.images * (1 if by_columns else problem.result[0])
    work = Work(share * others * steps * cycles * (1 + edge * (MASKED - 1)) * rates.cycle_s, {})
    home = rates.home((problem.bytes_in + problem.bytes_out) / problem.workers)
    work.move(home, share * problem.bytes_in)
    work.move(
        "DRAM" if schedule["nontemporal"] else home, share * problem.bytes_out * (1 if schedule["nontemporal"] else 2)
    )
    work.move("L2", share * problem.image_bytes * (kernel[0] - 1))  # rows of the image are read again by the next ones
    return work
