"""The knobs, rules and default schedule of matrix products on CPUs."""

from __future__ import annotations

from typing import Final

from tessera.dtypes import fp32, int8
from tessera.scheduling.families.product.matrix.space import matrix_schedule, suits_unit
from tessera.scheduling.families.product.problem import (
    DEPTHS,
    MOST_DOTS,
    MOST_ROWS,
    SHARED,
    ContractionProblem,
    columns_of,
    dot_vectors,
    dots_fit,
)
from tessera.scheduling.families.product.rules import RULES, sums_have_a_place
from tessera.scheduling.language.knobs import Knob, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, VECTOR
from tessera.scheduling.model.shares import last_bytes, near_bytes, second_bytes

__all__ = ["RULES", "SHARED", "ContractionProblem", "default_schedule", "knobs", "packed_schedule", "space"]


def knobs(problem: ContractionProblem) -> tuple[Knob, ...]:
    """The knobs of a matrix product, widest useful choices for this problem."""
    lanes = problem.target.vector_bits // 32
    micro = tuple((mr, nr * lanes) for nr in (1, 2, 3, 4, 8) for mr in (1, 2, 4, 6, 8, 10, 12, 14, 16, 28))
    if dots_fit(problem):
        micro += tuple((mr, nr) for mr in range(1, MOST_DOTS + 1) for nr in (2, 4, 8))
    unit_rows = (32, 64, 128, 256, 512) if problem.has_unit else ()
    if problem.has_unit:
        micro += ((32, lanes), (32, 2 * lanes))
    deep = DEPTHS if problem.b_panels or problem.out_dtype != problem.accumulator or problem.pairs else (512,)
    blocks_k = tuple(sorted({4, 8, 16, 32, 64, 128, 256, 384, *deep}))
    tiles = tuple(
        (mc, nc, kc)
        for mc in sorted({4, 8, 16, 48, 96, 144, 192, 384, 768, *unit_rows})
        for nc in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
        for kc in blocks_k
    )
    unit = [Knob("unit", (VECTOR, MATRIX), "the instructions that multiply: vectors, or the matrix unit's tiles")]
    unit = unit if problem.has_unit else []
    return (
        Knob("tile", tiles, "cache blocks (MC, NC, KC): A's block for L2, B's block for L3"),
        Knob("micro", micro, "register tile (MR, NR)"),
        *unit,
        Knob("unroll", (1, 2, 4, 8), "steps of the innermost loop emitted one after another"),
        Knob("pack_a", (False, True), "copy blocks of A into contiguous rows"),
        Knob(
            "pack_b",
            (False, True, *[SHARED] * bool(problem.shared_panels)),
            "copy blocks of B into panels as wide as the register tile; shared: all of it, by all workers together; "
            "off: read B where it lies, on the matrix unit as the first operand of the transposed product",
        ),
        Knob("sums", ("output", "scratch", "registers"), "where sums wait for the next block of K"),
        Knob(
            "order",
            ("columns", "rows", "dots"),
            "which loop over register tiles is outside; dots: sums along vectors of K instead",
        ),
        Knob("parallel", ("rows", "columns", "batch"), "the dimension that is cut into one share per worker"),
        Knob("pipeline_depth", (1, 2), "2: the output tile is prefetched while its products are summed"),
        Knob("fetch_ahead", (0, 8, 16, 32, 64), "how many rows of a panel a packed constant is fetched before its use"),
        Knob("fusion", (True, False), "prologues and epilogues inside this kernel"),
    )


def default_schedule(problem: ContractionProblem) -> Schedule:
    """A schedule that is good on every machine seen so far; tuning improves on it."""
    if not problem.has_unit:
        return vector_schedule(problem)
    return matrix_schedule(problem) if suits_unit(problem) else vector_schedule(problem).replace(unit=VECTOR)


def vector_schedule(problem: ContractionProblem) -> Schedule:
    """The default on vector instructions.

    Blocks of 144 x 2048 x 256 with the rows outside reach 0.98 of MKL's AVX-512 path on Zen 4 (1024 and 2048 cubed).
    Few rows are one block, whose sums stay in the L2 cache; workers share out the columns, so that each packs its own.
    """
    rows = 12 if problem.target.vector_registers >= 32 else 6
    if problem.b_panels:
        return packed_schedule(problem)
    if problem.shared_quads:
        return packed_schedule(problem.over_panels).replace(pack_b=SHARED)
    if dots_fit(problem) and problem.m <= MOST_DOTS:
        return dots_schedule(problem)
    flat = problem.m <= MOST_ROWS
    schedule = Schedule(
        tile=_cache_blocks(problem, flat),
        micro=(rows, columns_of(problem, 2)),
        unroll=4,
        pack_a=True,
        pack_b=True,
        sums="scratch" if flat else "output",
        order="rows",
        parallel="columns" if flat else "rows",
        pipeline_depth=2,
        fetch_ahead=0,
        fusion=True,
    )
    in_place = problem.b_contiguous == "n" and not problem.b_mapped
    if in_place and problem.m <= (MOST_PAIR_ROWS if problem.pairs else MOST_ROWS):
        schedule = _few_rows(problem, schedule)
    if not flat and _has_few_registers(problem) and _lies_by_depth(problem):
        schedule = schedule.replace(pack_a=False)
    elif not flat and _reads_a_in_place(problem):
        schedule = schedule.replace(micro=(8, columns_of(problem, 2)), pack_a=False)
    if not problem.a_mapped and problem.target.vector_registers >= 32:
        schedule = (_small_pairs if problem.pairs else _small_sides)(problem, schedule, in_place)
    if problem.batch >= problem.workers > 1:
        schedule = schedule.replace(parallel="batch")
    if problem.a_walks:
        return schedule.replace(tile=_whole_depth(problem), sums="registers", pack_a=True)
    if sums_have_a_place(schedule.replace(unit=VECTOR), problem):
        return schedule
    if problem.k <= DEPTHS[-1]:
        return schedule.replace(tile=_whole_depth(problem))
    return _deep(problem, schedule)


def _reads_a_in_place(problem: ContractionProblem) -> bool:
    """Whether A's rows, near each other as they are, feed register tiles of eight rows as fast as packed ones: where a
    core starts one multiply-add of full width a cycle, 16 sums leave it no wait.

    One thread of Zen 4, speed over that of packed tiles of 12 rows: fp32, 256 cubed 1.07, 512 cubed 1.05, 1024 cubed
    1.03; bf16, 512 cubed 1.02. Cores that start two are as fast with 12 rows (2048 cubed: 0.94 with 8).
    """
    near = _lies_by_depth(problem) and problem.k * problem.element_bytes <= _a_row_bytes(problem)
    return near and problem.target.vector_registers >= 32 and problem.target.fma_per_cycle == 1


def _has_few_registers(problem: ContractionProblem) -> bool:
    """Whether register tiles have six rows, which are read where they lie as fast as packed: a copy only costs.

    One thread of Zen 3, fp32, speed over that with a packed A, geometric means by processor time: 15 products over
    packed weights 1.05, with panels read ahead 1.08 (least 0.93, of 1024 x 3072 x 768; most 1.24, of 784 x 192 x 768);
    7 over weights as they are 1.07 (least 1.01).
    """
    return problem.target.vector_registers < 32


def _lies_by_depth(problem: ContractionProblem) -> bool:
    """Whether register tiles can read A as it is: row by row, in the type that is multiplied."""
    as_multiplied = problem.a_dtype.itemsize == problem.element_bytes and not problem.quads
    return as_multiplied and problem.a_contiguous == "k" and not problem.a_mapped


def _a_row_bytes(problem: ContractionProblem) -> int:
    """The longest rows of A that are read in place: eight lie in L1 as ways of its sets, and those of a block of 144
    stay in L2.
    """
    return min(near_bytes(problem.target) // 8, second_bytes(problem.target) // 256)


def _small_bytes(problem: ContractionProblem) -> int:
    """Operands of one product of a batch that stay in the L1 cache."""
    return near_bytes(problem.target) * 3 // 4


def _packed_block_bytes(problem: ContractionProblem) -> int:
    """The most that a block of many rows takes beside packed weights: it streams from the last cache past a panel in
    L2. A few rows may take more of it, a quarter, as panels are read past them once.
    """
    return last_bytes(problem.target) * 3 // 32


def _cache_blocks(problem: ContractionProblem, flat: bool) -> tuple[int, int, int]:
    """Blocks whose depth leaves a panel of B in L1, as many rows of A as take a third of L2, and a block of B in a
    sixteenth of the last cache for each of the two workers of the machine on which that was found.
    """
    kc = 256
    row_bytes = kc * problem.element_bytes
    mc = max(48, min(144, second_bytes(problem.target) * 3 // 10 // row_bytes // 48 * 48))
    nc = 2048
    while nc > 256 and nc * row_bytes * max(2, problem.workers) > last_bytes(problem.target) // 4:
        nc //= 2
    return mc, 4096 if flat else nc, kc


def _small_sides(problem: ContractionProblem, schedule: Schedule, in_place: bool) -> Schedule:
    """Products that read an operand only once, or from the L1 cache: what is not packed need not be read twice.

    One thread of Zen 4, fp32, MKL's time over ours, packed and so: a million rows, K = N = 8, 0.40 and 0.87; K = N =
    64, 0.84 and 1.14; 4096 products of 32 x 64 x 32, 0.69 and 0.93; 64 x 1,000,000 x 64, 0.80 and 0.98.
    """
    lanes = columns_of(problem, 1)
    vectors = min(-(-problem.n // lanes), 4)
    along = problem.a_contiguous == "k"
    if problem.m > MOST_ROWS and problem.k <= 256 and problem.n <= 4 * lanes and along:
        rows, pack_b = ((8, not in_place), (12, True), (8, True), (6, True))[vectors - 1]
        return schedule.replace(
            tile=(768, 128, 256), micro=(rows, vectors * lanes), pack_a=False, pack_b=pack_b, pipeline_depth=1
        )
    if not in_place or not along:
        return schedule
    both = (problem.m + problem.n) * problem.k * problem.accumulator.itemsize
    if problem.batch > 1 and problem.m <= MOST_ROWS and both <= _small_bytes(problem):
        micro = (16, lanes) if vectors == 1 else (8, 2 * lanes)
        return schedule.replace(tile=(144, 1024, 256), micro=micro, pack_a=False, pack_b=False)
    if problem.k > DEPTHS[-1] and 12 < problem.m <= MOST_ROWS and problem.n <= MOST_ROWS:
        return schedule.replace(tile=(144, 128, 384), micro=(8, 2 * lanes), pack_a=False, pack_b=False, sums="scratch")
    return schedule


def _small_pairs(problem: ContractionProblem, schedule: Schedule, in_place: bool) -> Schedule:
    """The same of bf16 pairs: A in place, B mostly packed, which interleaves its rows once and not for each tile.

    One thread of Zen 4, oneDNN's time over ours, A packed and so: 100,000 rows, K = N = 8, 0.27 and 0.65; K = 64 and
    N = 8, 0.67 and 1.2; K = 8 and N = 64, 0.77 and 1.0; K = N = 64, 0.83 and 1.0; 1000 products of 64 cubed, 0.75 and
    1.1; 64 x 65,536 x 64, 0.7 and 0.96.
    """
    if problem.a_contiguous != "k":
        return schedule
    lanes = columns_of(problem, 1)
    columns = min(-(-problem.n // lanes), 2) * lanes
    narrow = schedule.replace(pack_a=False, pack_b=True, pipeline_depth=1)
    if problem.m > MOST_ROWS and ((problem.k <= 512 and problem.n <= 4 * lanes) or problem.n <= lanes):
        kc = next((depth for depth in DEPTHS if depth >= problem.k), DEPTHS[-1])
        unroll = 2 if problem.k <= 16 and columns == lanes else 4
        sums = "output" if kc <= 512 else "registers"
        return narrow.replace(tile=(768, 128, kc), micro=(8, columns), unroll=unroll, sums=sums)
    both = (problem.m + problem.n) * problem.k * problem.element_bytes
    if problem.batch > 1 and problem.m <= MOST_ROWS and both <= _small_bytes(problem):
        return narrow.replace(tile=(144, 1024, 256), micro=(8, columns))
    if problem.k > DEPTHS[-1] and 12 < problem.m <= MOST_ROWS and problem.n <= MOST_ROWS:
        return schedule.replace(
            tile=(144, 128, 512), micro=(8, 2 * lanes), pack_a=False, pack_b=not in_place, sums="scratch"
        )
    return schedule


def _deep(problem: ContractionProblem, schedule: Schedule) -> Schedule:
    """Sums that the output does not hold, over a K that no block holds: all rows of a block of columns in scratch
    memory, as narrow as that takes.
    """
    rows = schedule.integers("micro")[0]
    mc = -(-problem.m // rows) * rows
    nc = columns_of(problem, 2)
    # Neither the depth nor what it follows from are of the caches: they decide the order of sums.
    while nc < 1024 and mc * 2 * nc * problem.accumulator.itemsize <= 4 << 20:
        nc *= 2
    kc = max(16, min(512, (8 << 20) // (mc * problem.element_bytes) // 16 * 16))
    order = "columns" if mc * kc * problem.element_bytes <= _packed_block_bytes(problem) else "rows"
    return schedule.replace(
        tile=(mc, nc, kc), micro=(rows, columns_of(problem, 2)), pack_b=True, sums="scratch", order=order
    )


def packed_schedule(problem: ContractionProblem) -> Schedule:
    """A schedule over weights that were packed once: each panel is read from its beginning to its end, in one stream,
    while the sums stay in registers; A is copied once, in rows of all of K.

    One thread of Zen 4, K = N = 4096, best packed library's time over ours: fp32, 1 row 1.47, 8 rows 1.45, 16 rows
    1.18, 32 rows 1.14, 64 rows 1.05; bf16, 1 row 2.0, 8 rows 1.9, 16 rows 1.3, 32 rows 1.17, 64 rows 1.03.
    """
    most = 12 if problem.target.vector_registers >= 32 else 6
    height = next((rows for rows in (1, 2, 4, 6, 8, 10) if problem.m <= rows <= most), most)
    kc = next((depth for depth in DEPTHS if depth >= problem.k), 256)
    block_bytes = last_bytes(problem.target) // 4 if problem.m <= MOST_ROWS else _packed_block_bytes(problem)
    mc = ROWS[-1]  # fewer rows are one block all the same, in the kernel that serves more
    while mc > ROWS[0] and mc * kc * problem.element_bytes > block_bytes:
        mc = ROWS[ROWS.index(mc) - 1]
    deep = kc < problem.k
    in_place = _has_few_registers(problem) and _lies_by_depth(problem)
    # Bytes that are widened one by one gain nothing by it (Zen 3, 8 to 32 rows: 0.97 to 1.00), and one kernel serves.
    fetches = problem.m >= 8 and (problem.m <= 32 or in_place) and (problem.quads or problem.b_dtype is not int8)
    schedule = Schedule(
        tile=(144 if deep else mc, 2048 // problem.products, kc),
        micro=(height, problem.b_panels),
        unroll=4,
        pack_a=(problem.m > 1 and not in_place) or problem.a_mapped or problem.quads,
        pack_b=False,
        sums="registers" if not deep else "scratch" if problem.m <= MOST_ROWS else "output",
        order="columns" if not deep or problem.m <= MOST_ROWS else "rows",
        parallel="columns" if problem.m <= MOST_ROWS else "rows",
        pipeline_depth=2,
        fetch_ahead=32 if fetches else 0,
        fusion=True,
    )
    if problem.batch >= problem.workers > 1:
        schedule = schedule.replace(parallel="batch")
    return schedule


def dots_schedule(problem: ContractionProblem) -> Schedule:
    """Few rows by weights [N, K]: as many columns at once as there are registers for."""
    sums = 16 // dot_vectors(problem)
    columns = next(count for count in (8, 4, 2, 1) if problem.m * count <= sums or count == 1)
    if problem.target.vector_registers < 32:
        columns = min(columns, 4 if problem.m == 1 else 2) if problem.m <= 4 else 1
    return Schedule(
        tile=(16, 2048, next((depth for depth in DEPTHS if depth >= problem.k), DEPTHS[-1])),
        micro=(max(problem.m, 1), columns),
        unroll=2,
        pack_a=False,
        pack_b=False,
        sums="registers",
        order="dots",
        parallel="batch" if problem.batch >= problem.workers > 1 else "columns",
        pipeline_depth=1,
        fetch_ahead=0,
        fusion=True,
    )


ROWS = (16, 48, 96, 144, 192)
"""Heights of blocks of A beside packed weights."""

MOST_PAIR_ROWS = 32
"""The same for bf16 pairs, which are multiplied twice as fast and interleaved anew for every register tile in place."""
FAR_ROWS = 4096
"""Bytes of a row of B, a page, from which a register tile had better read pieces of few rows at a time: as many as are
fetched ahead. Measured (2 to 4 times as fast on a Xeon); huge pages and rows that fall into other sets change nothing.
"""
FAR_DEPTHS: Final = (8, 16, 32, 64)
"""Depths of such pieces. One busy thread of Zen 3, where 16 rows are fetched ahead, processor time by that of 16 deep
pieces: fp32, K = N = 4096, 16 rows, 8 deep 0.83, 64 deep 0.92, 256 deep 1.16; K = 2048, 64 rows, 1.07, 1.07, 1.25."""


def _few_rows(problem: ContractionProblem, schedule: Schedule) -> Schedule:
    """B in place, with blocks of a depth that leaves B's rows and the sums in the caches beside each other.

    Two or three heights serve all numbers of rows: sums in scratch memory need no masks for the rows that a register
    tile lacks. One thread of Zen 4, K = N = 4096, oneDNN's time with weights packed beforehand over ours: fp32, 8 rows
    1.00, 12 rows 0.94, 16 rows 1.05, 32 rows 1.01, 128 rows 0.99; bf16, 8 rows 1.00, 12 rows 0.98, 32 rows 0.86.

    Where B's rows are far apart, few of them are walked at once. One thread of a Xeon beside other jobs, by vectors,
    the time of blocks 16 deep over that of 256 deep ones: bf16, K = N = 4096, 2 rows 0.36, 8 rows 0.38, 16 rows 0.31,
    32 rows 0.48; N = 11,008, K = 1024, 16 rows 0.55; N = 1000, K = 4000, where they are near, 16 rows 1.1. fp32, K = N
    = 4096, 16 rows 0.27, 32 rows 0.30, 64 rows 0.46, 128 rows 0.53; N = 11,008, 0.30, 0.40, 0.60, 0.66.
    """
    wide, far = problem.target.vector_registers >= 32, problem.target.streams
    depth = max([each for each in FAR_DEPTHS if each <= far], default=FAR_DEPTHS[0])
    if problem.m <= 1:
        rows, vectors, tile, unroll = 1, 2, (48, 4096, 8), 1
    elif problem.pairs and problem.n * problem.element_bytes < FAR_ROWS:
        rows, vectors, tile, unroll = 12, 2, (48, 4096, 256), 4
    elif problem.pairs:
        rows, vectors = (12, 2) if problem.m <= 12 else (16, 1)
        tile, unroll = (48, 4096, depth), 4
    elif problem.m <= 12:
        rows, vectors, tile, unroll = 12, 2, (144, 4096, depth), 4
    elif problem.n * problem.element_bytes < FAR_ROWS:
        rows, vectors, tile, unroll = 16, 1, (144, 1024, 256), 4
    else:
        near = problem.m * 4096 * fp32.itemsize <= second_bytes(problem.target) // 2  # the sums of all rows
        rows, vectors, tile, unroll = 16, 1, (144, 4096 if near else 1024, depth), 4
    if not wide:
        rows, vectors = min(rows, 6), 2
    elif problem.accumulator.itemsize == 8:
        rows, vectors = min(rows, 12), 2
    micro = (rows, columns_of(problem, vectors))
    return schedule.replace(tile=tile, micro=micro, unroll=unroll, pack_b=False)


def _whole_depth(problem: ContractionProblem) -> tuple[int, int, int]:
    """Blocks whose depth covers K, narrowed until those of both operands fit 5 / 32 of the last cache a worker.

    Two workers of Zen 4 on 2048 cubed in bf16: 0.99 of oneDNN's time over ours with 1024 columns, 0.93 with 2048.
    """
    kc = next((depth for depth in (256, 384, 512, 1024, 2048, 4096, 8192, 16384) if depth >= problem.k), 16384)
    mc = max(48, min(144, second_bytes(problem.target) // 2 // (kc * problem.element_bytes) // 48 * 48))
    nc = 1024
    while nc > 128 and (mc + nc) * kc * problem.element_bytes > last_bytes(problem.target) * 5 // 32:
        nc //= 2
    return mc, nc, kc


def space(problem: ContractionProblem) -> Space[ContractionProblem]:
    """All schedules of one matrix product."""
    return Space(knobs(problem), RULES, problem, default_schedule(problem), _starts(problem))


def _starts(problem: ContractionProblem) -> tuple[Schedule, ...]:
    """What tuning found beside the default: broad register tiles, whose few rows of A are read where they lie, with the
    rows outside. One thread of an Emerald Rapids without AMX, fp32, 1024 cubed: 168 GFLOP/s where the default has 150.
    """
    wide = problem.target.vector_registers >= 32
    in_place = problem.a_contiguous == "k" and not problem.a_mapped and not problem.a_walks
    if not wide or not in_place or problem.m <= MOST_ROWS or problem.b_panels or problem.products > 1:
        return ()
    start = vector_schedule(problem).replace(micro=(6, columns_of(problem, 4)), pack_a=False, order="rows")
    return (start.replace(unit=VECTOR) if problem.has_unit else start,)
