"""What attention, or one walk of its gradient, under a schedule asks of a GPU: the count of every resource.

A program holds rows of one side and walks the other one, some columns a step. A step multiplies, does what lies between
products (an exponential of each score, and ordinary instructions), and waits for loads that the stages in flight do not
hide. Products and what lies between them hang on each other: one group of warps does one after the other, and only
other groups on its multiprocessor hide some of it. (Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3",
2024, section 3.1.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tessera.dtypes import DType
from tessera.scheduling.families.attention.gpu.rules import is_amd, reads_shared
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target import Target
from tessera.target.occupancy import Occupancy, occupancy

Unit = Literal["wgmma", "tcgen05", "mma.sync", "mfma", "fma"]

ORDINARY_PER_CLOCK: Final = 128
"""Ordinary instructions, of one lane each, that a multiprocessor starts in a clock."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of each step: `rows` of what is held by `columns`, summed over `depth`; multiplied in `dtype`.

    `converts` says whether its left operand was just computed, and takes the way to where matrix units read it.
    """

    rows: int
    columns: int
    depth: int
    dtype: DType
    converts: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What a kernel does under a schedule, whatever the machine.

    `programs` are those of the grid, `steps` those of all programs together, and `longest` those of the one with the
    most. `rows` are held, `columns` walked at a time. `operations` are ordinary instructions for each score.
    `loaded_bytes` are those of a step, `held_bytes` what a program reads before its walk and `stored_bytes` what it
    writes. `memory_bytes` must come from memory or go there once, `shared_bytes` are those that programs of one head
    walk, of `heads` heads. `looked_up` says whether a step's addresses are loaded first, as a table of pages has them.
    `joined_bytes` are partial results that a second kernel joins; 0 without one.
    """

    target: Target
    operand: DType
    programs: int
    steps: float
    longest: float
    rows: int
    columns: int
    products: tuple[Product, ...]
    operations: float
    loaded_bytes: float
    held_bytes: float
    stored_bytes: float
    memory_bytes: float
    shared_bytes: float
    heads: int
    resources: BlockResources
    looked_up: bool = False
    joined_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """Of all products, padding included."""
        return self.steps * sum(product.flops for product in self.products)


@dataclass(frozen=True, slots=True)
class WalkWork:
    """Every number that the estimate is made of.

    Seconds are those of the busiest multiprocessor (`mma_s`, `score_s`: what lies between products, `compute_s`: both
    as far as they do not hide each other, `shared_s`, `wait_s`, `busy_s`) or of the whole GPU (`l2_s`, `hbm_s`,
    `join_s`: the kernel that joins parts).
    """

    unit: Unit
    flop_per_s: float
    walk: Walk
    resources: BlockResources
    held: Occupancy
    at_once: int
    programs_per_multiprocessor: int
    fill: float
    in_flight: float
    mma_s: float
    score_s: float
    compute_s: float
    shared_s: float
    wait_s: float
    busy_s: float
    l2_bytes: float
    hbm_bytes: float
    l2_s: float
    hbm_s: float
    join_s: float


def predicted_registers(values: float, permitted: float, most: int) -> tuple[int, int]:
    """(registers, bytes that spill) of a thread that holds so many values, of which none was seen to spill up to
    `permitted`, where it may have `most` registers.
    """
    needed = -(-int(max(values / max(permitted, 1) * most, 32)) // 8) * 8
    return min(needed, most), 8 * max(needed - most, 0)


def unit_of(walk: Walk, warps: int) -> Unit:
    """The instructions that multiply."""
    if walk.operand.itemsize > 2:
        return "fma"
    if is_amd(walk.target):
        return "mfma"
    if not reads_shared(walk.rows, warps, walk.operand, walk.target):
        return "mma.sync"
    return "wgmma" if walk.target.arch == "sm_90" else "tcgen05"


def walk_work(walk: Walk, schedule: Schedule, rates: GpuMachine, resources: BlockResources | None = None) -> WalkWork:
    """All counts of one kernel, with registers and shared memory as the compiler reported them, or predicted ones."""
    taken, known, cycle = resources or walk.resources, rates.constants, 1 / rates.clock_hz
    warps, stages = schedule.integer("warps"), schedule.integer("pipeline_depth")
    unit = unit_of(walk, warps)
    held = occupancy(rates.limits, taken.warps, taken.registers, taken.shared_bytes)
    most = -(-walk.programs // rates.multiprocessors)
    at_once = max(1, min(held.blocks, most))
    spilling = 1 + taken.spill_bytes / 256
    mma_s = _mma_seconds(walk, unit, warps, rates) * spilling
    score_s = _score_seconds(walk, rates) * spilling
    shared_s = _shared_bytes(walk, unit, warps) / rates.shared_byte_per_s
    groups = at_once * max(warps // 4, 1)
    hidden = known.softmax_hidden if groups > 1 else 0.0
    compute_s = max(mma_s, score_s) + (1 - hidden) * min(mma_s, score_s)
    busy_s = max(compute_s, shared_s)
    # One block alone: as few warps as it has neither multiply nor form scores faster than their share allows.
    alone_s = (mma_s + score_s) * max(1.0, 4 / warps) + (known.step_cycles + known.issue_cycles) * cycle
    l2_bytes = walk.steps * walk.loaded_bytes + walk.programs * (walk.held_bytes + walk.stored_bytes)
    hbm_bytes = _memory_bytes(walk, rates, at_once)
    arrive_s = _arrival_seconds(walk, rates, at_once, hbm_bytes / max(l2_bytes, 1.0))
    wait_s = _wait_seconds(unit, stages, alone_s, arrive_s)
    step_s = max(at_once * (busy_s + known.issue_cycles * cycle), alone_s, wait_s)
    steps = _busiest_steps(walk, rates.multiprocessors, most)
    rounds = max(most / at_once, 1.0)
    fill_s = rates.latency_s[1] + (walk.held_bytes + walk.loaded_bytes) / (known.port_bytes_per_clock * rates.clock_hz)
    store_s = walk.stored_bytes / known.epilogue_bytes_per_clock * cycle
    block_s = (fill_s + store_s + known.product_block_cycles * cycle) * (1 + (rounds - 1) / at_once)
    return WalkWork(
        unit=unit,
        flop_per_s=walk.flops / max(walk.steps, 1.0) / mma_s * rates.multiprocessors,
        walk=walk,
        resources=taken,
        held=held,
        at_once=at_once,
        programs_per_multiprocessor=most,
        fill=walk.steps / (steps * rates.multiprocessors),
        in_flight=at_once * max(stages - 1, 1) * walk.loaded_bytes,
        mma_s=steps * mma_s,
        score_s=steps * score_s,
        compute_s=steps * compute_s,
        shared_s=steps * shared_s,
        wait_s=steps / at_once * wait_s + block_s,
        busy_s=steps / at_once * step_s + block_s,
        l2_bytes=l2_bytes,
        hbm_bytes=hbm_bytes,
        l2_s=l2_bytes / rates.l2_byte_per_s,
        hbm_s=hbm_bytes / rates.hbm_byte_per_s,
        join_s=_join_seconds(walk, rates),
    )


def _arrival_seconds(walk: Walk, rates: GpuMachine, at_once: int, missed: float) -> float:
    """Until what a step loads is there, of which the part `missed` comes from memory: an idle device's latency, and the
    multiprocessor's share of the bandwidth. So an H100 read 1.4 TB/s with one program a multiprocessor that had a
    step of 16 KiB under way, and 2.0 with two.
    """
    known = rates.constants
    port = 1 / (known.port_bytes_per_clock * rates.clock_hz)
    memory = min(missed, 1.0) * rates.multiprocessors / rates.hbm_byte_per_s
    latency = rates.latency_s[1] + (rates.latency_s[0] if walk.looked_up else 0.0)
    return latency / known.loaded + at_once * walk.loaded_bytes * max(port, memory)


def _wait_seconds(unit: Unit, stages: int, alone_s: float, arrive_s: float) -> float:
    """The least that a step takes, for loads. Matrix units that read registers have a stage less in shared memory, so
    that two stages load when the step before is done (`rules.shared_bytes`).
    """
    if stages == 1:
        return alone_s + 2 * arrive_s
    if unit in ("wgmma", "tcgen05"):
        return max(arrive_s / (stages - 1), (arrive_s + alone_s) / stages)
    return (arrive_s + alone_s) / (stages - 1)


def _busiest_steps(walk: Walk, multiprocessors: int, most: int) -> float:
    """Steps of the multiprocessor with the most. Programs of unequal lengths begin with the longest, and so even out;
    equal ones come in rounds.
    """
    mean = walk.steps / max(walk.programs, 1)
    even = walk.steps / multiprocessors
    if walk.longest > 1.25 * mean:
        return max(walk.longest, even + mean / 2 if most > 1 else walk.longest, 1.0)
    return max(most * mean, 1.0)


def _mma_seconds(walk: Walk, unit: Unit, warps: int, rates: GpuMachine) -> float:
    """Matrix instructions of one step on one multiprocessor."""
    return (
        sum(product.flops / _flop_per_s(product, walk, unit, warps, rates) for product in walk.products)
        * rates.multiprocessors
    )


def _flop_per_s(product: Product, walk: Walk, unit: Unit, warps: int, rates: GpuMachine) -> float:
    """What the whole GPU multiplies of such products."""
    known = rates.constants
    if unit == "fma":
        rate = rates.flop_per_s.get(product.dtype.name) if product.dtype.itemsize > 4 else None
        return known.vector_share * (rate or rates.vector_flop_per_s)
    peak = rates.flop_per_s.get(product.dtype.name) or rates.flop_per_s.get("bf16") or rates.vector_flop_per_s
    if unit == "wgmma":  # narrow ones wait for their left operand, which is counted as shared memory
        return peak
    if unit == "tcgen05":
        return peak * (0.5 if product.rows < 128 else 1.0)  # the instruction fills half of the unit's lanes
    shares = {"sm_90": known.hopper_warp_share, "sm_100": known.blackwell_warp_share}
    share = shares.get(rates.arch, 1.0) if unit == "mma.sync" else 1.0
    # Warps beyond the tile's 16 x 8 (16 x 16) pieces repeat what others do.
    pieces = product.rows * product.columns / (16 * (16 if unit == "mfma" else 8))
    return peak * share * min(1.0, pieces / warps)


def _score_seconds(walk: Walk, rates: GpuMachine) -> float:
    """What lies between the products of one step: exponentials have a unit of their own, beside ordinary
    instructions.
    """
    scores, known = walk.rows * walk.columns, rates.constants
    ordinary = scores * walk.operations / (ORDINARY_PER_CLOCK * known.score_share)
    return max(scores / known.exponentials_per_clock, ordinary) / rates.clock_hz


def _shared_bytes(walk: Walk, unit: Unit, warps: int) -> float:
    """Bytes that go through the shared memory of one multiprocessor in one step of one block."""
    read = 0.0
    for product in walk.products:
        right, left = product.columns * product.depth, product.rows * product.depth
        if unit == "wgmma":
            # Each instruction takes 64 rows and all columns of its group; what was just computed is in registers.
            elements = max(product.rows // 64, 1) * right + (0 if product.converts else left)
        elif unit == "tcgen05":
            elements = max(product.rows // 128, 1) * right + left * (2 if product.converts else 1)
        else:
            parts = min(warps, max(product.rows // 16, 1))
            elements = parts * right + (2 * left if product.converts else left)
        read += elements * product.dtype.itemsize
    return walk.loaded_bytes + read


def _memory_bytes(walk: Walk, rates: GpuMachine, at_once: int) -> float:
    """What comes from memory and goes there. Programs of a head walk the same; what several heads walk at a time is
    read again where it does not stay in L2.
    """
    each = walk.programs / max(walk.heads, 1)
    slots = rates.multiprocessors * at_once
    heads = min(walk.heads, max(slots / max(each, 1.0), 1.0))
    if heads * walk.shared_bytes <= rates.l2_bytes:
        return walk.memory_bytes
    again = max(each / max(min(each, slots), 1.0), 1.0)
    return walk.memory_bytes + (again - 1) * walk.heads * walk.shared_bytes


def _join_seconds(walk: Walk, rates: GpuMachine) -> float:
    if not walk.joined_bytes:
        return 0.0
    known = rates.constants
    rate = rates.l2_byte_per_s if walk.joined_bytes <= rates.l2_bytes else rates.hbm_byte_per_s
    return known.launch_s + rates.latency_s[1] + walk.joined_bytes / rate + known.rows_block_cycles / rates.clock_hz
