"""What a matrix product under a schedule makes one worker do. The loop nest is that of `contraction.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from tessera.scheduling.contraction_parts import m_tails
from tessera.scheduling.contraction_problem import SHARED, ContractionProblem, as_run
from tessera.scheduling.machine import FMA_LATENCY, REORDERED, ROW_CYCLES, Machine, Work, largest_share
from tessera.scheduling.schedule import KnobValue, Schedule

LINE: Final = 64
PAGE: Final = 4096
WAYS: Final = 8
"""Lines of L1 that fall into one set; addresses `PAGE` apart share it (32 KiB in 8 ways; 48 KiB in 12 is no worse)."""

ISSUE: Final = 5.0
"""Instructions per cycle that sustained vector code reaches."""
IN_PLACE_CYCLES: Final = 2.5
"""Cycles per row and step that A read in place costs where one element feeds several vectors and the loop is unrolled;
fitted to kernels of `backend/llvm`, which gather neighbouring elements there and take them apart again."""
LOOP_INSTRUCTIONS: Final = 4
"""Counter, compare, branch and an address per trip of the innermost loop."""
TILE_CYCLES: Final = 30
"""Entering and leaving a register tile: clearing sums, addresses, filling and draining the pipeline."""
DETOUR_CYCLES: Final = 250
"""Cycles per row and K block where a register tile that overhangs the output is added to it under masks."""
MISS_CYCLES: Final = {"L1": 0.0, "L2": 1.5, "L3": 5.0, "DRAM": 12.0}
"""Cycles per line of the output where it is not prefetched: latency over the misses that run at once."""
TLB_ENTRIES: Final = 64
TLB_CYCLES: Final = 2
"""Pages that the first translation buffer holds, and what a miss of it costs when the second one hits and others wait
at the same time."""
STREAMS: Final = 16
"""Sequential streams that hardware prefetchers follow."""
MISS_LOSS: Final = 2.0
"""How much longer a line takes from L2 where its load is waited for."""
UNPREFETCHED: Final = 0.5
"""The part of a level's bandwidth that is left where they do not."""
JUMP_BYTES: Final = 256
"""What a jump to another row costs, as bytes that could have been read."""
CONFLICT_LOSS: Final = 2.0
"""How much longer B takes in excess where its prefetched lines push each other out before they are used."""
PACKING_S: Final = 1.4e-6
"""Seconds that a kernel takes beside its work, where it is one for all workers."""
PACK_CYCLES: Final = 3.0
"""Cycles per vector of packing beside the traffic, addresses and masks included; transposing takes twice that."""


@dataclass(frozen=True, slots=True)
class Nest:
    """The numbers of one schedule on one problem that every count below is made of. Extents are one worker's."""

    m: int
    n: int
    k: int
    mc: int
    nc: int
    kc: int
    mr: int
    nr: int
    columns: int
    row_tiles: tuple[tuple[int, int], ...]
    column_tiles: int
    k_blocks: int

    @property
    def row_tile_count(self) -> int:
        """Register tiles down the worker's rows."""
        return sum(count for _, count in self.row_tiles)

    @property
    def jc_blocks(self) -> int:
        """Trips of the outermost loop."""
        return -(-self.n // self.nc)

    @property
    def ic_blocks(self) -> int:
        """Blocks of A per block of B."""
        return -(-self.m // self.mc)


def contraction_work(problem: ContractionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share, all batches together."""
    if schedule["pack_b"] == SHARED:
        return _shared_work(problem, schedule, rates)
    if schedule["order"] == "dots":
        return _dots_work(problem, schedule, rates)
    nest = _nest(problem, schedule, rates)
    work = Work(_arithmetic(problem, schedule, nest, rates), {})
    operands = _Operands(problem, schedule, nest, rates, work)
    operands.inner_traffic()
    operands.output_traffic()
    operands.outer_traffic()
    return work


def _shared_work(problem: ContractionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The product over panels, and a worker's share of packing them, which begins and ends with all others'."""
    run, panels = as_run(Schedule(schedule), problem)
    work = contraction_work(panels, run, rates)
    nbytes = float(problem.batch) * problem.k * problem.n * panels.element_bytes / problem.workers
    transposed = 2 if problem.b_contiguous == "k" else 1
    work.packing_s += PACKING_S + nbytes / rates.vector_bytes * PACK_CYCLES * transposed * rates.cycle_s
    work.pack(rates.home(3 * nbytes), 3 * nbytes)
    return work


def _dots_work(problem: ContractionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """Dot products (`contraction_dots.py`): B once from where it lies, two instructions per vector of K and sum."""
    mr, nr = cast(tuple[int, int], schedule["micro"])
    n = largest_share(max(problem.n, 1), nr, problem.workers)
    steps = problem.batch * problem.k * problem.accumulator.itemsize / rates.vector_bytes * n / nr
    instructions = problem.m * (1 + 2 * nr) + nr * -(-problem.m // mr) + LOOP_INSTRUCTIONS
    work = Work(steps * instructions / ISSUE * rates.cycle_s, {})
    b = float(problem.batch) * problem.k * n * problem.b_dtype.itemsize
    a = float(problem.batch) * problem.k * problem.m * problem.a_dtype.itemsize
    work.move(rates.home(b + a), b + a)
    work.move("L2", a * max(n / nr - 1, 0))
    return work


def _nest(problem: ContractionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Nest:
    mc, nc, kc = cast(tuple[int, int, int], schedule["tile"])
    mr, nr = cast(tuple[int, int], schedule["micro"])
    mc, nc = max(mc // mr, 1) * mr, max(nc // nr, 1) * nr  # as the lowering rounds them
    m, n = max(problem.m, 1), max(problem.n, 1)
    if schedule["parallel"] == "rows":
        m = largest_share(m, mr, problem.workers)
    else:
        n = largest_share(n, nr, problem.workers)
    whole, rest = divmod(n, nc)
    column_tiles = whole * -(-nc // nr) + -(-rest // nr)
    lanes = rates.vector_bytes // problem.accumulator.itemsize
    k = max(problem.k, 1)
    return Nest(
        m, n, k, min(mc, m), min(nc, n), min(kc, k), mr, nr, -(-nr // lanes) * problem.products,
        tuple(_row_tiles(m, mc, mr).items()), column_tiles, -(-k // kc),
    )  # fmt: skip


def _row_tiles(m: int, mc: int, mr: int) -> dict[int, int]:
    """How many register tiles of each height a worker's rows take: full ones, then one smaller tile per block."""
    tails = m_tails(mr)
    counts: dict[int, int] = {}
    for block, times in ((mc, m // mc), (m % mc, 1)):
        if not block or not times:
            continue
        full = -(-(block - (tails[0] if tails else 0)) // mr)
        counts[mr] = counts.get(mr, 0) + full * times
        rest = block - full * mr
        if rest > 0:
            height = min(tail for tail in tails if tail >= rest)
            counts[height] = counts.get(height, 0) + times
    return counts


def _arithmetic(problem: ContractionProblem, schedule: Mapping[str, KnobValue], nest: Nest, rates: Machine) -> float:
    """Seconds of all register tiles with their operands in L1."""
    pairs = problem.pairs
    flop_per_s = rates.flop_per_s.get("bf16" if pairs else problem.accumulator.name) or rates.flop_per_s["fp32"]
    flops = 2 * (2 if pairs else 1) * rates.vector_bytes / problem.accumulator.itemsize
    fma_s = flops / flop_per_s
    unroll = cast(int, schedule["unroll"])
    steps = nest.k / (2 if pairs else 1)
    output = "L2" if nest.k_blocks > 1 else rates.home(float(problem.m) * problem.n * problem.out_dtype.itemsize)
    miss = 1.0 if schedule["pipeline_depth"] == 2 else 1.0 + MISS_CYCLES[output]
    lines = -(-nest.nr * problem.out_dtype.itemsize // LINE)
    tlb = TLB_CYCLES * nest.kc if _scattered(problem, schedule, nest) else 0
    interleaving = nest.columns if pairs and not schedule["pack_b"] else 0
    in_place = IN_PLACE_CYCLES if not schedule["pack_a"] and nest.columns > 1 and unroll > 1 else 0.0
    total = 0.0
    for height, count in nest.row_tiles:
        multiplies = height * nest.columns
        instructions = multiplies + nest.columns + 2 * interleaving + height + LOOP_INSTRUCTIONS / unroll
        # Short sums do not wait for each other: the next register tile has begun before this one ends.
        latency = FMA_LATENCY * nest.kc / (nest.kc + REORDERED / instructions)
        step = max(multiplies * fma_s, latency * rates.cycle_s, instructions / ISSUE * rates.cycle_s)
        step += height * in_place * rates.cycle_s
        results = height * nest.columns // problem.products
        finish = results * (2 * nest.k_blocks - 1 + problem.epilogue_operations + problem.outputs - 1)
        overhead = nest.k_blocks * (TILE_CYCLES + height * lines * miss + tlb) + finish
        total += count * (steps * step + overhead * rates.cycle_s)
    if schedule["sums"] == "output" and sum(height * count for height, count in nest.row_tiles) > nest.m:
        overhanging = nest.row_tiles[-1][0]
        total += overhanging * DETOUR_CYCLES * (nest.k_blocks - 1) * rates.cycle_s
    return total * nest.column_tiles * problem.batch


def _scattered(problem: ContractionProblem, schedule: Mapping[str, KnobValue], nest: Nest) -> bool:
    """Whether a panel of B lies on more pages than can be translated at once."""
    return not schedule["pack_b"] and nest.kc > TLB_ENTRIES and problem.n * problem.b_dtype.itemsize >= PAGE


def _rows_without_conflict(stride: int, run: int) -> int:
    """How many rows of `run` bytes, `stride` bytes apart, L1 keeps: strides near powers of two crowd into few sets."""
    step = stride % PAGE
    positions = PAGE // _gcd(step, PAGE) if step else 1
    return WAYS * max(1, min(positions, PAGE // max(run, LINE)))


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


class _Operands:
    """Counts the traffic of A, B and the output into `work`."""

    def __init__(
        self,
        problem: ContractionProblem,
        schedule: Mapping[str, KnobValue],
        nest: Nest,
        rates: Machine,
        work: Work,
    ) -> None:
        self.problem, self.nest, self.rates, self.work = problem, nest, rates, work
        self.pack_a, self.pack_b = bool(schedule["pack_a"]), bool(schedule["pack_b"])
        self.rows_outside = schedule["order"] == "rows"
        self.a_size = problem.element_bytes if self.pack_a else problem.a_dtype.itemsize
        # All products of A: a row of B is a row of each.
        self.b_size = (problem.element_bytes if self.pack_b else problem.b_dtype.itemsize) * problem.products
        self.b_bytes = problem.k * problem.n * problem.b_dtype.itemsize * problem.products
        size = problem.accumulator.itemsize
        a = problem.m * problem.k * problem.a_dtype.itemsize
        whole = problem.batch * (a + self.b_bytes + problem.m * problem.n * max(size, problem.out_dtype.itemsize))
        self.source = rates.home(whole / problem.workers)
        self.block_a, self.block_b = nest.mc * nest.kc * self.a_size, nest.nc * nest.kc * self.b_size

    def inner_traffic(self) -> None:
        """From L1 into registers, and from the outer caches into L1, while register tiles are computed."""
        nest, rates, work, batch = self.nest, self.rates, self.work, self.problem.batch
        tiles = nest.row_tile_count * nest.column_tiles
        heights = sum(height * count for height, count in nest.row_tiles) * nest.column_tiles
        # A broadcast takes a load as a whole vector does, but two of them fit where one full vector does.
        work.move("L1", batch * nest.k * (tiles * nest.nr * self.b_size + heights * rates.vector_bytes / 2))
        panel_a, panel_b = nest.mr * nest.kc * self.a_size, nest.nr * nest.kc * self.b_size
        all_a, all_b = float(nest.m) * nest.k * self.a_size, float(nest.n) * nest.k * self.b_size
        near = rates.capacity.get("L1", 0.0)
        home_a = rates.home(self.block_a)
        home_b = rates.home(self.block_b + (self.block_a if home_a == "L2" else 0))
        # One operand's panel is used again and again, from L1 or where else it fits; the other's block streams past it.
        if self.rows_outside:
            stays = panel_a + 2 * panel_b / nest.kc * STREAMS <= near
            self._fetch(home_a, batch * all_a * nest.jc_blocks)
            self._fetch("L1" if stays else rates.home(panel_a), batch * all_a * (nest.column_tiles - nest.jc_blocks))
            self._fetch(home_b, batch * all_b * nest.row_tile_count * (MISS_LOSS if self._crowded_b() else 1.0))
        else:
            stays = panel_b + 2 * panel_a / nest.kc * STREAMS <= near and not self._crowded_b()
            self._fetch(home_a, batch * all_a * nest.column_tiles)
            self._fetch(home_b, batch * all_b * nest.ic_blocks)
            again = batch * all_b * (nest.row_tile_count - nest.ic_blocks)
            if self._crowded_b():
                self._fetch("L2", again * MISS_LOSS)
            else:
                self._fetch("L1" if stays else rates.home(panel_b), again)
        # Rows that push each other out of L1 cost a line for each element, at L2's latency and not its bandwidth.
        self._fetch("L2", batch * float(nest.m) * nest.k * nest.column_tiles * self._crowded_a() * MISS_LOSS * LINE)

    def _fetch(self, level: str, nbytes: float) -> None:
        if level != "L1":
            self.work.move(level, nbytes)

    def _crowded_a(self) -> float:
        """The part of A's elements whose line is gone from L1 before its next element is needed."""
        if self.pack_a or self.problem.a_contiguous != "k":
            return 0.0
        room = _rows_without_conflict(self.problem.k * self.a_size, LINE)
        # Fitted: the more of B streams through the cache beside them, the fewer of the lines in excess survive.
        return min(1.0, max(0.0, (self.nest.mr / room - 1) * self.nest.columns / 2))

    def _crowded_b(self) -> bool:
        run = self.nest.nr * self.b_size
        return not self.pack_b and self.nest.kc > _rows_without_conflict(self.problem.n * self.b_size, run)

    def output_traffic(self) -> None:
        """The output is written once, with the line fetched before, and read and written again per further K block."""
        nest, size = self.nest, self.problem.out_dtype.itemsize
        elements = float(self.problem.batch) * nest.m * nest.n
        self._fetch(self.source, 2 * elements * size * self.problem.outputs)
        between = self.rates.home(float(nest.m) * nest.nc * size)
        self._fetch(between, 2 * elements * size * (nest.k_blocks - 1))

    def outer_traffic(self) -> None:
        """Operands come from where they lie, once to be packed or once to be used."""
        nest, problem, batch = self.nest, self.problem, self.problem.batch
        a = float(nest.m) * nest.k * problem.a_dtype.itemsize * batch
        b = float(nest.k) * nest.n * problem.b_dtype.itemsize * problem.products * batch
        again = self.rates.home(a / batch) if nest.jc_blocks > 1 else self.source
        if self.pack_a:
            self._pack(self.source, a, self.block_a, problem.a_contiguous == "m", 1.0)
            self._walk_rows(a)
            for _ in range(min(nest.jc_blocks - 1, 1)):
                self._pack(again, a * (nest.jc_blocks - 1), self.block_a, problem.a_contiguous == "m", 1.0)
        else:
            self._fetch(self.source, a)
            self._fetch(again, a * (nest.jc_blocks - 1))
        loss = self._unprefetched(nest.nr * problem.b_dtype.itemsize)
        if self.pack_b:
            self._pack(self.source, b, self.block_b, problem.b_contiguous == "k", loss)
        else:
            self._fetch(self.source, b * loss)

    def _walk_rows(self, nbytes: float) -> None:
        """A's rows are walked for what their norm needs, and computed while they are packed, for each block of B."""
        nest, problem, rates = self.nest, self.problem, self.rates
        vectors = nbytes / problem.a_dtype.itemsize * 4 / rates.vector_bytes * nest.jc_blocks
        rows = float(nest.m) * problem.batch * nest.jc_blocks * problem.a_walks
        self.work.packing_s += (vectors * problem.a_instructions + rows * ROW_CYCLES) * rates.cycle_s
        self.work.pack(rates.home(self.block_a), nbytes * problem.a_walks * nest.jc_blocks)

    def _unprefetched(self, run: int) -> float:
        """How much longer B takes than its bytes say, where its rows are read in short runs on many pages."""
        nest, size = self.nest, self.problem.b_dtype.itemsize
        if self.problem.b_contiguous != "n":
            return 1.0
        jump = 1.0 + JUMP_BYTES / (nest.nc * size) if nest.nc < self.problem.n else 1.0
        room = _rows_without_conflict(self.problem.n * size, run)
        evicted = CONFLICT_LOSS * min(1.0, max(0.0, (nest.kc / room - 1) / 3))
        streams = (1 / UNPREFETCHED - 1) * min(1.0, max(0.0, (nest.kc - STREAMS) / (8 * STREAMS)))
        return jump + max(evicted, streams)

    def _pack(self, level: str, nbytes: float, block: float, transposed: bool, loss: float) -> None:
        vectors = nbytes / self.rates.vector_bytes
        self.work.packing_s += vectors * PACK_CYCLES * (2 if transposed else 1) * self.rates.cycle_s
        self.work.pack(level, nbytes * loss)
        self.work.pack(self.rates.home(block), nbytes)
