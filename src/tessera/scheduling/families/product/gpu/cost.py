"""What a matrix product under a schedule asks of a GPU: the count of every resource, level by level.

Per multiprocessor: matrix instructions, what they read from shared memory, and the wait for loads that the stages in
flight do not hide (Little's law). Of the whole GPU: waves of blocks over the multiprocessors, traffic from L2 and from
memory behind it, where blocks that run side by side share tiles (GROUP_M), and what splitting K adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from tessera.scheduling.families.product.gpu.problem import (
    GpuContractionProblem,
    shared_bytes,
    sums_per_thread,
    uses_descriptor,
)
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources, ceil_div
from tessera.target.occupancy import Occupancy, occupancy

Unit = Literal["wgmma", "tcgen05", "mma.sync", "mfma", "fma"]

_BASE_REGISTERS: Final[Mapping[Unit, int]] = MappingProxyType(
    {"wgmma": 40, "tcgen05": 40, "mma.sync": 40, "mfma": 56, "fma": 40}
)
"""Registers of a thread beside sums and fragments: addresses, masks, counters; as ptxas was seen to take."""


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One step along K of the `at_once` blocks that a multiprocessor holds: the seconds of one block's matrix
    instructions and shared memory traffic, the wait for loads that stages do not hide, and all of them together.
    """

    at_once: int
    mma_s: float
    shared_s: float
    wait_s: float
    seconds: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class ContractionWork:
    """Every number that the estimate of one product is made of.

    Seconds are those of the busiest multiprocessor (`mma_s`, `shared_s`, `wait_s`, `block_s`, all of it: `busy_s`) or
    of the whole GPU (`l2_s`, `hbm_s`, `sum_s`: adding up the parts of a split K).
    """

    unit: Unit
    flop_per_s: float
    tiles: int
    split_k: int
    steps: int
    resources: BlockResources
    held: Occupancy
    tiles_per_multiprocessor: int
    wave_fill: float
    step: BlockStep
    mma_s: float
    shared_s: float
    wait_s: float
    block_s: float
    busy_s: float
    l2_bytes: float
    hbm_bytes: float
    l2_s: float
    hbm_s: float
    sum_s: float


def unit_of(problem: GpuContractionProblem, schedule: Schedule) -> Unit:
    """The instructions that multiply: the widest that the tile, the warps and the dtype allow."""
    bm, _, _ = schedule.integers("tile")
    if not problem.target.arch.startswith("sm_"):
        return "mfma"
    if problem.operand.itemsize == 4 and not problem.is_narrow:
        return "fma"  # fp32 as exact as IEEE has it
    whole_groups = bm >= 64 and schedule.integer("warps") % 4 == 0 and problem.is_narrow
    if whole_groups and problem.target.arch == "sm_90":
        return "wgmma"
    if whole_groups and problem.target.arch == "sm_100":
        return "tcgen05"
    return "mma.sync"


def predicted_resources(problem: GpuContractionProblem, schedule: Schedule) -> BlockResources:
    """What a block takes before any compiler is asked."""
    unit, warps = unit_of(problem, schedule), schedule.integer("warps")
    bm, bn, bk = schedule.integers("tile")
    size, lanes = problem.operand.itemsize, problem.limits.warp_size
    words = sums_per_thread(schedule, problem)
    if unit in ("mma.sync", "mfma"):
        rows, columns = _warp_tile(schedule, unit)
        words += (rows + columns) * (bk if unit == "mfma" else min(bk, 32)) * size / 4 / lanes
    if unit == "mfma":
        # What is on its way to shared memory passes through registers.
        words += (schedule.integer("pipeline_depth") - 1) * (bm + bn) * bk * size / 4 / (warps * lanes)
    elif unit == "fma":
        words += (bm + bn) * bk * size / 4 / (warps * lanes)
    words += _loaded_alone(problem, schedule) / (warps * lanes)
    # The epilogue begins when the operands are gone, and works on one part of the result after the other.
    finished = sums_per_thread(schedule, problem) * (
        1 + problem.epilogue_words / _number(schedule, "epilogue_parts", 1)
    )
    words = max(words, finished)
    asked = schedule.get("max_registers", 0)
    most = asked if isinstance(asked, int) and asked else problem.limits.max_registers_per_thread
    needed = -(-int(words + _BASE_REGISTERS[unit]) // 8) * 8
    spilled = 8 * max(needed - most, 0)  # stored and loaded again, 4 bytes each
    return BlockResources(min(needed, most), spilled, shared_bytes(schedule, problem), warps)


def _loaded_alone(problem: GpuContractionProblem, schedule: Schedule) -> int:
    """Elements of the operands' tiles that are loaded one by one, each into a register: asynchronous copies move 4
    bytes at least, and rows of an odd number of narrow elements permit none.
    """
    bm, bn, bk = schedule.integers("tile")
    operands = (("a", bm, problem.a), ("b", bn, problem.b))
    pointed = (
        side * bk for name, side, layout in operands if layout.extent_bytes < 4 and not uses_descriptor(schedule, name)
    )
    return sum(pointed)


def contraction_work(
    problem: GpuContractionProblem, schedule: Schedule, rates: GpuMachine, resources: BlockResources | None = None
) -> ContractionWork:
    """All counts of one product, with the registers and shared memory that the compiler reported, or predicted ones."""
    taken = resources or predicted_resources(problem, schedule)
    unit = unit_of(problem, schedule)
    flop_per_s = _flop_per_s(problem, schedule, rates, unit)
    bm, bn, bk = schedule.integers("tile")
    split = _number(schedule, "split_k", 1)
    tiles = ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * max(problem.batch, 1) * split
    steps = ceil_div(ceil_div(problem.k, split), bk)
    held = occupancy(problem.limits, taken.warps, taken.registers, taken.shared_bytes)
    most = ceil_div(tiles, rates.multiprocessors)
    programs = held.blocks if schedule.get("grid", "flat") == "flat" else 1
    step = _step(problem, schedule, rates, taken, flop_per_s, max(1, min(programs, most)))
    rounds = most / step.at_once
    # The first blocks hide nothing of their beginning and end, later ones all but their share.
    block_s = _block_seconds(problem, schedule, rates, step) * (1 + (rounds - 1) / step.at_once)
    l2_bytes, hbm_bytes = _traffic(problem, schedule, rates, max(held.blocks, 1), split)
    return ContractionWork(
        unit=unit,
        flop_per_s=flop_per_s,
        tiles=tiles,
        split_k=split,
        steps=steps,
        resources=taken,
        held=held,
        tiles_per_multiprocessor=most,
        wave_fill=tiles / (most * rates.multiprocessors),
        step=step,
        mma_s=most * steps * step.mma_s,
        shared_s=most * steps * step.shared_s,
        wait_s=rounds * steps * step.wait_s + block_s,
        block_s=block_s,
        busy_s=rounds * steps * step.seconds + block_s,
        l2_bytes=l2_bytes,
        hbm_bytes=hbm_bytes,
        l2_s=l2_bytes / rates.l2_byte_per_s,
        hbm_s=hbm_bytes / rates.hbm_byte_per_s,
        sum_s=_sum_seconds(problem, rates, split),
    )


def _step(
    problem: GpuContractionProblem,
    schedule: Schedule,
    rates: GpuMachine,
    taken: BlockResources,
    flop_per_s: float,
    at_once: int,
) -> BlockStep:
    bm, bn, bk = schedule.integers("tile")
    stages, cycle = schedule.integer("pipeline_depth"), 1 / rates.clock_hz
    spilling, known = 1 + taken.spill_bytes / 256, rates.constants
    mma_s = 2 * bm * bn * bk / flop_per_s * rates.multiprocessors * spilling
    loaded = (bm + bn) * bk * problem.operand.itemsize
    read = _shared_bytes_read(problem, schedule, unit_of(problem, schedule))
    shared_s = (loaded + read) / rates.shared_byte_per_s
    busy_s = max(mma_s, shared_s)
    alone_s = busy_s + (known.step_cycles + known.issue_cycles) * cycle
    # Blocks that share a tile ask for it at about the same time: all wait for the memory behind L2.
    arrive_s = rates.latency_s[1] + at_once * loaded / (known.port_bytes_per_clock * rates.clock_hz)
    wait_s = arrive_s / (stages - 1) if stages > 1 else alone_s + arrive_s
    seconds = max(at_once * (busy_s + known.issue_cycles * cycle), alone_s, wait_s)
    return BlockStep(at_once, mma_s, shared_s, wait_s, seconds, at_once * max(stages - 1, 1) * loaded)


def _number(schedule: Schedule, name: str, otherwise: int) -> int:
    value = schedule.get(name, otherwise)
    assert isinstance(value, int)
    return value


def _flop_per_s(problem: GpuContractionProblem, schedule: Schedule, rates: GpuMachine, unit: Unit) -> float:
    """What the whole GPU multiplies with these instructions, for tiles of this shape."""
    bm, bn, _ = schedule.integers("tile")
    if unit == "fma":
        return rates.constants.vector_share * rates.vector_flop_per_s
    peak = rates.flop_per_s.get(problem.operand.name) or rates.vector_flop_per_s
    share = _warp_share(rates) if unit == "mma.sync" and problem.is_narrow else 1.0
    if unit == "tcgen05" and bm < 128:
        share /= 2  # the instruction fills half of the unit's lanes
    if unit in ("mma.sync", "mfma"):
        # Warps beyond the tile's 16 x 8 (16 x 16) pieces repeat what others do.
        share *= min(1.0, bm * bn / (schedule.integer("warps") * 16 * (16 if unit == "mfma" else 8)))
    return peak * share


def _warp_share(rates: GpuMachine) -> float:
    """The part of the matrix peak that instructions of one warp reach, where wider ones make the peak."""
    shares = {"sm_90": rates.constants.hopper_warp_share, "sm_100": rates.constants.blackwell_warp_share}
    return shares.get(rates.arch, 1.0)


def _warp_tile(schedule: Schedule, unit: Unit) -> tuple[int, int]:
    """Rows and columns of the block's tile that one warp (Hopper and later: one group of four) multiplies."""
    bm, bn, _ = schedule.integers("tile")
    parts = schedule.integer("warps")
    rows, columns = bm, bn
    least = 16
    if unit in ("wgmma", "tcgen05"):
        parts, least = max(parts // 4, 1), 64
    while parts > 1:
        parts //= 2
        if rows > least and (rows >= columns or unit == "wgmma"):
            rows //= 2
        elif columns > 8:
            columns //= 2
    return rows, columns


def _shared_bytes_read(problem: GpuContractionProblem, schedule: Schedule, unit: Unit) -> float:
    """Bytes that the matrix units, or the warps for them, read from shared memory in one step of one block."""
    bm, bn, bk = schedule.integers("tile")
    rows, columns = _warp_tile(schedule, unit)
    size = problem.operand.itemsize
    if unit == "tcgen05":
        return (min(bm, 128) + bn) * bk * size * max(bm // 128, 1)
    parts = (bm // rows) * (bn // columns)
    if unit == "wgmma":
        # Each instruction takes 64 rows of A and all columns of its group.
        return parts * max(rows // 64, 1) * (64 + columns) * bk * size
    return parts * (rows + columns) * bk * size


def _traffic(
    problem: GpuContractionProblem, schedule: Schedule, rates: GpuMachine, blocks: int, split: int
) -> tuple[float, float]:
    """(bytes from L2, bytes from and to the memory behind it).

    Blocks that run at a time cover `group` rows of tiles, or more where all columns are covered. They read each tile of
    A and B from memory once. B is read again by every group of rows; A too, where its rows do not stay in L2 meanwhile.
    """
    bm, bn, _ = schedule.integers("tile")
    m, n, k = max(problem.m, 1), max(problem.n, 1), max(problem.k, 1)
    size, batch = problem.operand.itemsize, max(problem.batch, 1)
    rows, columns = ceil_div(m, bm), ceil_div(n, bn)
    slots = rates.multiprocessors * blocks
    merged = rates.constants.merged if rates.is_nvidia and min(_number(schedule, "group", 1), rows) > 1 else 1
    l2 = batch * k * size * (columns * min(m, rows * bm) + rows * n / merged)
    a, b, out = m * k * size, n * k * size, m * n * problem.output.itemsize
    together = min(rows, max(min(_number(schedule, "group", 1), rows), slots // columns))
    again_b = ceil_div(rows, together)
    if (a + b) <= rates.l2_bytes:
        again_a, again_b = 1, 1
    else:
        stays = together * bm * k * size <= rates.l2_bytes
        again_a = 1 if stays else ceil_div(together * columns, slots)
    if split > 1:
        out = split * m * n * 4  # partial sums; the result is written by the kernel that adds them up
    return l2 + batch * out, batch * (a * again_a + b * again_b + out)


def _sum_seconds(problem: GpuContractionProblem, rates: GpuMachine, split: int) -> float:
    """The kernel that adds up the partial sums of a split K: it reads what was just written, from L2 if it fits."""
    if split == 1:
        return 0.0
    elements = max(problem.batch, 1) * problem.m * problem.n
    parts = 4.0 * split * elements
    read = parts / (rates.l2_byte_per_s if parts <= rates.l2_bytes else rates.hbm_byte_per_s)
    return read + elements * problem.output.itemsize / rates.hbm_byte_per_s + rates.latency_s[1]


def _block_seconds(problem: GpuContractionProblem, schedule: Schedule, rates: GpuMachine, step: BlockStep) -> float:
    """Filling the pipeline, writing the result, entering and leaving: what a block does beside its steps."""
    bm, bn, _ = schedule.integers("tile")
    grid, known = schedule.get("grid", "flat"), rates.constants
    store_s = bm * bn * problem.output.itemsize / known.epilogue_bytes_per_clock / rates.clock_hz
    if grid == "fused":
        return store_s / 2  # the next tile's loads are under way while this one's result is written
    fill_s = rates.latency_s[1] + step.in_flight / (known.port_bytes_per_clock * rates.clock_hz)
    return fill_s + store_s + (known.product_block_cycles / rates.clock_hz if grid == "flat" else 0.0)
