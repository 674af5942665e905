"""What a matrix product under a schedule makes one worker do. The loop nest is that of `product/lowering.py`."""

from __future__ import annotations

from math import gcd
from typing import Any, Final

import numpy as np

from tessera.scheduling.families.product.matrix.cost import unit_arithmetic, unit_nest
from tessera.scheduling.families.product.matrix.turned import stays_in_place, turned_problem, turned_schedule
from tessera.scheduling.families.product.nest import Nest, nest_of
from tessera.scheduling.families.product.problem import SHARED, ContractionProblem
from tessera.scheduling.language.columns import Columns, Knobs, Number, divided, larger, no, smaller, where
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, UNIT_ROWS
from tessera.scheduling.model.estimate import PARTS
from tessera.scheduling.model.machine import (
    DRAM,
    L1,
    L2,
    PAGE,
    REORDERED,
    ROW_CYCLES,
    SPILL_CYCLES,
    Machine,
    Work,
    largest_share,
)

LINE: Final = 64

ISSUE: Final = 5.0
"""Instructions per cycle that sustained vector code reaches."""
IN_PLACE_ROWS: Final = 12
IN_PLACE_CYCLES: Final = 0.6
"""Rows of A read in place that have addresses of their own in registers, and cycles per row and step where there are
more and each element feeds several vectors (Zen 4, 512 cubed: 14 rows by two vectors 3.2 ms, 12 rows 2.5).
"""
LOOP_INSTRUCTIONS: Final = 4
"""Counter, compare, branch and an address per trip of the innermost loop."""
TILE_CYCLES: Final = 30
"""Entering and leaving a register tile: clearing sums, addresses, filling and draining the pipeline."""
DETOUR_CYCLES: Final = 250
"""Cycles per row and K block where a register tile that overhangs the output is added to it under masks."""
MISS_CYCLES: Final = np.array([0.0, 1.5, 5.0, 12.0])
"""Cycles per line of the output where it is not prefetched, by the place of its level in `LEVELS`: latency over the
misses that run at once."""
TLB_CYCLES: Final = 2
"""What a miss of the first translation buffer costs when the second one hits and others wait at the same time."""
PASSING: Final = 16
"""Rows of the other operand's panel, in both directions, that are in L1 beside a panel which stays there."""
MISS_LOSS: Final = 3.0
"""How much longer a line takes from L2 where its load is waited for."""
UNPREFETCHED: Final = 0.5
"""The part of a level's bandwidth that is left where they do not."""
JUMP_BYTES: Final = 1024
"""What a jump to another row costs, as bytes that could have been read."""
CONFLICT_LOSS: Final = 1.0
"""How much longer B takes in excess where its prefetched lines push each other out before they are used."""
BESIDE_LOSS: Final = 0.5
"""How much longer B takes from memory where multiply-adds read its rows in place, a few columns of one behind those
of another: each row has pages of its own to begin, and sums wait for all of them. A copy's loads wait for nothing (Zen
4, a row by 4096 squared: blocks of 8 rows 3.2 ms in place, where memory alone takes 2.1).
"""
PACKING_S: Final = 0.3e-6
"""Seconds that a kernel takes beside its work and beside waking the workers, where it is one for all of them."""
PACK_CYCLES: Final = 3.0
"""Cycles per vector of packing beside the traffic, addresses and masks included; transposing takes twice that."""


def contraction_work(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share, all batches together."""

    def dots(schedule: Knobs) -> Work:
        return _dots_work(problem, schedule, rates)

    def vectors(schedule: Knobs) -> Work:
        return _tiles_work(problem, schedule, rates)

    def unit(schedule: Knobs) -> Work:
        return _unit_work(problem, schedule, rates)

    def tiles(schedule: Knobs) -> Work:
        in_unit = schedule.equals("unit", MATRIX) if problem.has_unit else False
        return Work.piecewise(schedule, in_unit, unit, vectors)

    def alone(schedule: Knobs) -> Work:
        return Work.piecewise(schedule, schedule.equals("order", "dots"), dots, tiles)

    def straight(schedule: Any) -> Work:
        if not problem.turns:
            return alone(schedule)
        return Work.piecewise(schedule, stays_in_place(schedule, problem), turned, alone)

    def turned(schedule: Any) -> Work:
        return _unit_work(turned_problem(problem), turned_schedule(schedule), rates)

    def shared(schedule: Any) -> Work:
        return _shared_work(problem, schedule, rates)

    return Work.piecewise(schedule, schedule.equals("pack_b", SHARED), shared, straight)


def _tiles_work(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Work:
    nest = nest_of(problem, schedule, rates)
    work = Work(0.0)
    _arithmetic(problem, schedule, nest, rates, work)
    operands = _Operands(problem, schedule, nest, rates, work)
    operands.inner_traffic()
    operands.output_traffic()
    operands.outer_traffic()
    return work


def _unit_work(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Work:
    """The same on the matrix unit, whose operands come as whole tiles."""
    nest = unit_nest(problem, schedule, rates)
    work = Work(0.0)
    unit_arithmetic(problem, nest, rates, work)
    operands = _Operands(problem, schedule, nest, rates, work)
    # Each step reads tiles of 64 bytes a row; a row of B holds a group of each column.
    groups = problem.unit_depth / UNIT_ROWS
    operands.inner_traffic((nest.mr / groups + nest.nr * problem.products / groups) / UNIT_ROWS * LINE)
    operands.output_traffic()
    operands.outer_traffic()
    return work


def _shared_work(problem: ContractionProblem, schedule: Schedule | Columns, rates: Machine) -> Work:
    """The product over panels, and a worker's share of packing them, which begins and ends with all others'."""
    panels = problem.over_panels
    work = contraction_work(panels, schedule.replace(pack_b=False), rates)
    nbytes = float(problem.batch) * problem.k * problem.n * panels.element_bytes / problem.workers
    transposed = 2 if problem.b_contiguous == "k" else 1
    cycles = nbytes / rates.vector_bytes * PACK_CYCLES * transposed
    work.packing_s = work.packing_s + PACKING_S + rates.wake_s + cycles * rates.cycle_s
    work.pack(rates.home(3 * nbytes), 3 * nbytes)
    return work


def _dots_work(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Work:
    """Dot products (`product/dots.py`): B once from where it lies, two instructions per vector of K and sum."""
    mr, nr = schedule.integers("micro")
    n = largest_share(max(problem.n, 1), nr, problem.workers)
    steps = problem.batch * problem.k * problem.accumulator.itemsize / rates.vector_bytes * n / nr
    instructions = problem.m * (1 + 2 * nr) + nr * divided(problem.m, mr) + LOOP_INSTRUCTIONS
    work = Work(steps * instructions / ISSUE * rates.cycle_s)
    work.parts["issue"] = work.compute_s
    b = float(problem.batch) * problem.k * n * problem.b_dtype.itemsize
    a = float(problem.batch) * problem.k * problem.m * problem.a_dtype.itemsize
    work.move(rates.home(b + a), b + a)
    work.move(L2, a * larger(n / nr - 1, 0))
    return work


def _arithmetic(problem: ContractionProblem, schedule: Knobs, nest: Nest, rates: Machine, work: Work) -> None:
    """Seconds of all register tiles with their operands in L1."""
    pairs = problem.pairs
    flop_per_s = rates.flop_per_s.get("bf16" if pairs else problem.accumulator.name) or rates.flop_per_s["fp32"]
    flops = 2 * (2 if pairs else 1) * rates.vector_bytes / problem.accumulator.itemsize
    fma_s, cycle_s = flops / flop_per_s, rates.cycle_s
    unroll = schedule.integer("unroll")
    steps = nest.k / (2 if pairs else 1)
    overhead = _tile_overhead(problem, schedule, nest, rates)
    interleaving = where(schedule.flag("pack_b"), 0, nest.columns) if pairs else 0
    apart = no(schedule.flag("pack_a")) & (nest.columns > 1)
    parts = dict.fromkeys(PARTS, 0.0)
    total: Number = 0.0
    for height, count in nest.row_tiles:
        in_place = where(apart & (height > IN_PLACE_ROWS), IN_PLACE_CYCLES, 0.0)
        multiplies = height * nest.columns
        instructions = multiplies + nest.columns + 2 * interleaving + height + LOOP_INSTRUCTIONS / unroll
        # Short sums do not wait for each other: the next register tile has begun before this one ends.
        waiting = rates.fma_latency * nest.kc / (nest.kc + REORDERED / instructions) * cycle_s
        issue = instructions / ISSUE * cycle_s
        entering, per_row, per_result = overhead
        results = multiplies // problem.products * per_result
        edges = (nest.k_blocks * (entering + height * per_row) + results) * cycle_s
        step = larger(larger(multiplies * fma_s, waiting), issue) + height * in_place * cycle_s
        total = total + count * (steps * step + edges)
        seconds = (multiplies * fma_s, issue + height * in_place * cycle_s, waiting, edges / steps)
        for name, alone in zip(("FMA", "issue", "wait", "edges"), seconds, strict=True):
            parts[name] = parts[name] + count * steps * alone
    spills = _spilled(problem, nest) * sum(count for _, count in nest.row_tiles) * cycle_s
    parts["spills"] = spills
    total = total + spills
    detours = schedule.equals("sums", "output") & (nest.rows_computed > nest.m)
    total = total + where(detours, nest.overhanging * DETOUR_CYCLES * (nest.k_blocks - 1) * cycle_s, 0.0)
    work.compute_s = total * nest.column_tiles * problem.batch
    work.parts = {name: alone * nest.column_tiles * problem.batch for name, alone in parts.items()}


def _spilled(problem: ContractionProblem, nest: Nest) -> Number:
    """Cycles of a register tile for sums that give way to what the epilogue keeps: stored, and loaded again."""
    held = nest.mr * nest.columns + problem.epilogue_live - 1
    return SPILL_CYCLES * larger(held - problem.target.vector_registers, 0)


def _tile_overhead(
    problem: ContractionProblem, schedule: Knobs, nest: Nest, rates: Machine
) -> tuple[Number, Number, Number]:
    """Cycles of a register tile beside its steps: for each block of K, for each of these and row, and for each vector
    of results.
    """
    result = rates.home(float(problem.m) * problem.n * problem.out_dtype.itemsize)
    output = where(nest.k_blocks > 1, L2, result)
    lines = divided(nest.nr * problem.out_dtype.itemsize, LINE)
    miss = where(schedule.equals("pipeline_depth", 2), 1.0, 1.0 + MISS_CYCLES[output])
    entering = TILE_CYCLES + where(_scattered(problem, schedule, nest, rates), TLB_CYCLES * nest.kc, 0)
    return entering, lines * miss, 2 * nest.k_blocks - 1 + problem.epilogue_operations + problem.outputs - 1


def _scattered(problem: ContractionProblem, schedule: Knobs, nest: Nest, rates: Machine) -> Number:
    """Whether a panel of B lies on more pages than can be translated at once."""
    far = problem.n * problem.b_dtype.itemsize >= PAGE
    return no(schedule.flag("pack_b")) & (nest.kc > rates.tlb_pages) & far


def _rows_without_conflict(stride: Number, run: Number, ways: int) -> Number:
    """How many rows of `run` bytes, `stride` bytes apart, L1 keeps: strides near powers of two crowd into few sets."""
    step = stride % PAGE
    positions = PAGE // (np.gcd(step, PAGE) if isinstance(step, np.ndarray) else gcd(step, PAGE))
    return ways * larger(1, smaller(positions, PAGE // larger(run, LINE)))


class _Operands:
    """Counts the traffic of A, B and the output into `work`."""

    def __init__(self, problem: ContractionProblem, schedule: Knobs, nest: Nest, rates: Machine, work: Work) -> None:
        self.problem, self.nest, self.rates, self.work = problem, nest, rates, work
        self.pack_a, self.pack_b = schedule.flag("pack_a"), schedule.flag("pack_b")
        self.rows_outside = schedule.equals("order", "rows")
        self.a_size = where(self.pack_a, problem.element_bytes, problem.a_dtype.itemsize)
        # All products of A: a row of B is a row of each.
        self.b_size = where(self.pack_b, problem.element_bytes, problem.b_dtype.itemsize) * problem.products
        self.b_bytes = problem.k * problem.n * problem.b_dtype.itemsize * problem.products
        size = problem.accumulator.itemsize
        a = problem.m * problem.k * problem.a_dtype.itemsize
        whole = problem.batch * (a + self.b_bytes + problem.m * problem.n * max(size, problem.out_dtype.itemsize))
        self.source = rates.home(whole / problem.workers)
        self.block_a, self.block_b = nest.mc * nest.kc * self.a_size, nest.nc * nest.kc * self.b_size

    def inner_traffic(self, tile_bytes: Number = None) -> None:
        """From L1 into registers, and from the outer caches into L1, while register tiles are computed; `tile_bytes`
        are what a register tile reads for each row of B, as vectors do unless given.
        """
        nest, rates, batch = self.nest, self.rates, self.problem.batch
        tiles = nest.row_tile_count * nest.column_tiles
        heights = nest.rows_computed * nest.column_tiles
        # A broadcast takes a load as a whole vector does, but two of them fit where one full vector does.
        loads = tiles * nest.nr * self.b_size + heights * rates.vector_bytes / 2
        loads = loads if tile_bytes is None else tiles * tile_bytes
        self.work.move(L1, batch * nest.k * loads)
        panel_a, panel_b = nest.mr * nest.kc * self.a_size, nest.nr * nest.kc * self.b_size
        all_a, all_b = batch * nest.m * nest.k * self.a_size * 1.0, batch * nest.n * nest.k * self.b_size * 1.0
        near = rates.capacity.get("L1", 0.0)
        home_a = rates.home(self.block_a)
        home_b = rates.home(self.block_b + where(home_a == L2, self.block_a, 0))
        crowded, outside = self._crowded_b(), self.rows_outside
        # One operand's panel is used again and again, from L1 or where else it fits; the other's block streams past it.
        stays_a = panel_a + 2 * panel_b / nest.kc * PASSING <= near
        stays_b = (panel_b + 2 * panel_a / nest.kc * PASSING <= near) & no(crowded)
        self._fetch(home_a, all_a * where(outside, nest.jc_blocks, nest.column_tiles))
        again_a = where(outside, nest.column_tiles - nest.jc_blocks, 0)
        self._fetch(where(stays_a, L1, rates.home(panel_a)), all_a * again_a)
        missed = where(crowded, MISS_LOSS, 1.0)
        self._fetch(home_b, all_b * where(outside, nest.row_tile_count * missed, nest.ic_blocks))
        again_b = where(outside, 0, nest.row_tile_count - nest.ic_blocks) * missed
        self._fetch(where(crowded, L2, where(stays_b, L1, rates.home(panel_b))), all_b * again_b)
        if tile_bytes is not None:  # whole lines, each of which is read once
            return
        # Rows that push each other out of L1 cost a line for each element, at L2's latency and not its bandwidth.
        elements = batch * nest.m * nest.k * nest.column_tiles
        self._fetch(L2, elements * self._crowded_a() * MISS_LOSS * LINE)

    def _fetch(self, level: Number, nbytes: Number) -> None:
        """Traffic of the levels behind L1, which is counted with the loads."""
        self.work.move(level, where(level == L1, 0.0, nbytes))

    def _crowded_a(self) -> Number:
        """The part of A's elements whose line is gone from L1 before its next element is needed."""
        if self.problem.a_contiguous != "k":
            return 0.0
        room = _rows_without_conflict(self.problem.k * self.a_size, LINE, self.rates.near_ways)
        # Fitted: the more of B streams through the cache beside them, the fewer of the lines in excess survive.
        part = smaller(1.0, larger(0.0, (self.nest.mr / room - 1) * self.nest.columns / 2))
        return where(self.pack_a, 0.0, part)

    def _crowded_b(self) -> Number:
        ways = self.rates.near_ways
        room = _rows_without_conflict(self.problem.n * self.b_size, self.nest.nr * self.b_size, ways)
        return no(self.pack_b) & (self.nest.kc > room)

    def output_traffic(self) -> None:
        """The output is written once, with the line fetched before, and read and written again per further K block."""
        nest, size = self.nest, self.problem.out_dtype.itemsize
        elements = float(self.problem.batch) * nest.m * nest.n
        self._fetch(self.source, 2 * elements * size * self.problem.outputs)
        between = self.rates.home(nest.m * nest.nc * float(size))
        self._fetch(between, 2 * elements * size * (nest.k_blocks - 1))

    def outer_traffic(self) -> None:
        """Operands come from where they lie, once to be packed or once to be used."""
        nest, problem, batch = self.nest, self.problem, self.problem.batch
        a = float(batch) * nest.m * nest.k * problem.a_dtype.itemsize
        b = float(batch) * nest.k * nest.n * problem.b_dtype.itemsize * problem.products
        again = where(nest.jc_blocks > 1, self.rates.home(a / batch), self.source)
        self._fetch(self.source, where(self.pack_a, 0.0, a))
        self._fetch(again, where(self.pack_a, 0.0, a * (nest.jc_blocks - 1)))
        self._pack(self.pack_a, self.source, a, self.block_a, problem.a_contiguous == "m", 1.0)
        self._pack(self.pack_a, again, a * (nest.jc_blocks - 1), self.block_a, problem.a_contiguous == "m", 1.0)
        if problem.a_walks:
            self._walk_rows(where(self.pack_a, a, 0.0))
        jump, late = self._unprefetched(nest.nr * problem.b_dtype.itemsize)
        self._fetch(self.source, where(self.pack_b, 0.0, b * (jump + late)))
        self._pack(self.pack_b, self.source, b, self.block_b, problem.b_contiguous == "k", jump)

    def _walk_rows(self, nbytes: Number) -> None:
        """A's rows are walked for what their norm needs, and computed while they are packed, for each block of B."""
        nest, problem, rates = self.nest, self.problem, self.rates
        vectors = nbytes / problem.a_dtype.itemsize * 4 / rates.vector_bytes * nest.jc_blocks
        rows = where(nbytes > 0, float(problem.batch) * nest.m * nest.jc_blocks * problem.a_walks, 0.0)
        cycles = vectors * problem.a_instructions + rows * ROW_CYCLES
        self.work.packing_s = self.work.packing_s + cycles * rates.cycle_s
        self.work.pack(rates.home(self.block_a), nbytes * problem.a_walks * nest.jc_blocks)

    def _unprefetched(self, run: Number) -> tuple[Number, Number]:
        """How many times as long as its bytes say B takes where its rows are read in short runs, and how much longer
        still where they are multiplied in place, many pages at once: a copy's misses do not wait for each other.
        """
        nest, size = self.nest, self.problem.b_dtype.itemsize
        if self.problem.b_contiguous != "n":
            return 1.0, 0.0
        jump = where(nest.nc < self.problem.n, 1.0 + JUMP_BYTES / (nest.nc * size), 1.0)
        room = _rows_without_conflict(self.problem.n * size, run, self.rates.near_ways)
        evicted = CONFLICT_LOSS * smaller(1.0, larger(0.0, (nest.kc / room - 1) / 3))
        followed = self.rates.streams
        streams = (1 / UNPREFETCHED - 1) * smaller(1.0, larger(0.0, (nest.kc - followed) / (8 * followed)))
        beside = where((self.source == DRAM) & (nest.kc > 1), BESIDE_LOSS, 0.0)
        return jump, beside + larger(evicted, streams)

    def _pack(
        self, packs: Number, level: Number, nbytes: Number, block: Number, transposed: bool, loss: Number
    ) -> None:
        """Copying `nbytes` from a level into blocks that are read from where these fit, where a schedule `packs`."""
        nbytes = where(packs, nbytes, 0.0)
        vectors = nbytes / self.rates.vector_bytes * PACK_CYCLES * (2 if transposed else 1)
        self.work.packing_s = self.work.packing_s + vectors * self.rates.cycle_s
        self.work.pack(level, nbytes * loss)
        self.work.pack(self.rates.home(block), nbytes)
