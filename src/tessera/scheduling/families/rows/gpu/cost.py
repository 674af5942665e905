"""What a map or a reduction under a schedule asks of a GPU.

It is bound by memory, if enough bytes are under way (Little's law: blocks that a multiprocessor holds x bytes that each
has asked for) and enough blocks are there to fill the waves; else by latency, or by arithmetic of dear operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem, predicted_resources
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources, ceil_div
from tessera.target.occupancy import Occupancy, occupancy

ISSUE_PER_CLOCK: Final = 4
"""Warps of which a multiprocessor starts an instruction in a clock."""
SECTOR: Final = 32
"""Bytes that memory gives at a time: shorter runs along the lanes waste the rest."""


@dataclass(frozen=True, slots=True)
class RowsWork:
    """Every number that the estimate of one map or reduction is made of; seconds of the whole GPU, but for `wait_s` and
    `compute_s`, which are the busiest multiprocessor's.
    """

    blocks: int
    steps: int
    resources: BlockResources
    held: Occupancy
    blocks_per_multiprocessor: int
    wave_fill: float
    vector_bytes: int
    in_flight: int
    hbm_bytes: float
    l2_bytes: float
    hbm_s: float
    l2_s: float
    compute_s: float
    wait_s: float


def vector_bytes(problem: GpuRowsProblem, schedule: Schedule) -> int:
    """Bytes of the widest access of one thread that extents, alignment and the elements of a thread allow."""
    rows, width = schedule.integers("tile")
    each = rows * width // (schedule.integer("warps") * problem.limits.warp_size)
    elements = max(1, min(each, width))
    return max(problem.itemsize, min(16, problem.alignment, elements * problem.itemsize))


def rows_work(
    problem: GpuRowsProblem, schedule: Schedule, rates: GpuMachine, resources: BlockResources | None = None
) -> RowsWork:
    """All counts of one map or reduction, with registers as the compiler reported them, or predicted ones."""
    rows, width = schedule.integers("tile")
    taken = resources or predicted_resources(problem, schedule)
    held = occupancy(problem.limits, taken.warps, taken.registers, taken.shared_bytes)
    blocks, steps = _grid(problem, schedule)
    most = ceil_div(blocks, rates.multiprocessors)
    at_once = max(1, min(held.blocks, most))
    # What a block asks for before it uses any of it: a tile of each operand.
    operand_bytes = problem.bytes_in / problem.elements
    in_flight = int(at_once * min(rows * width, problem.elements) * operand_bytes)
    whole = schedule["whole_row"] or not problem.by_rows
    again = 0 if whole else problem.passes - 1
    waste = max(1.0, SECTOR / (width * problem.itemsize)) if problem.lanes > width else 1.0
    hbm_bytes = problem.bytes_in * waste + problem.bytes_out
    l2_bytes = hbm_bytes + again * problem.bytes_in
    cycle = 1 / rates.clock_hz
    step_s = rates.latency_s[1] + rates.constants.barrier_cycles * cycle * (problem.passes - 1 if whole else 0)
    passes = 1 + again
    later = max(most / max(held.blocks, 1) - 1, 0.0)
    # A round of blocks with fewer bytes under way than keep memory busy takes as long as one with just as many.
    round_s = rates.bytes_in_flight * rates.multiprocessors / rates.hbm_byte_per_s
    return RowsWork(
        blocks=blocks,
        steps=steps,
        resources=taken,
        held=held,
        blocks_per_multiprocessor=most,
        wave_fill=blocks / (most * rates.multiprocessors),
        vector_bytes=vector_bytes(problem, schedule),
        in_flight=in_flight,
        hbm_bytes=hbm_bytes,
        l2_bytes=l2_bytes,
        hbm_s=hbm_bytes / rates.hbm_byte_per_s,
        l2_s=l2_bytes / rates.l2_byte_per_s,
        compute_s=_compute_seconds(problem, schedule, rates, most, steps, passes) * (1 + taken.spill_bytes / 256),
        wait_s=passes * steps * (step_s + later * round_s) + rates.constants.rows_block_cycles * cycle,
    )


def _grid(problem: GpuRowsProblem, schedule: Schedule) -> tuple[int, int]:
    """(blocks of the grid, tiles that each walks one after another)."""
    rows, width = schedule.integers("tile")
    outer = max(problem.outer, 1)
    if problem.by_rows:
        return ceil_div(outer, rows), 1 if schedule["whole_row"] else ceil_div(problem.lanes, width)
    columns = ceil_div(problem.lanes, width)
    if problem.walks:
        return outer * columns, ceil_div(problem.reduced, rows)
    inner = max(problem.rows, 1)
    return outer // inner * ceil_div(inner, rows) * columns, 1


def _compute_seconds(
    problem: GpuRowsProblem, schedule: Schedule, rates: GpuMachine, most: int, steps: int, passes: int
) -> float:
    """Arithmetic and memory instructions of the busiest multiprocessor, padding of the tiles included."""
    rows, width = schedule.integers("tile")
    elements = most * steps * rows * width
    lanes = problem.limits.warp_size
    # A later pass computes again what it needs of the earlier ones: about half.
    arithmetic = elements * problem.operations * (1 + (passes - 1) / 2) / (lanes * ISSUE_PER_CLOCK)
    bytes_each = (problem.bytes_in + problem.bytes_out) / problem.elements
    accesses = (
        passes * elements * bytes_each / (lanes * vector_bytes(problem, schedule)) * rates.constants.access_cycles
    )
    return (arithmetic + accesses) / rates.clock_hz
