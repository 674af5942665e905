"""The knobs, rules and default schedule of matrix products on CPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.dtypes import DType, bf16, fp32, fp64
from tessera.scheduling.knobs import Knob, Rule, Space
from tessera.scheduling.schedule import Schedule
from tessera.target import Target


@dataclass(frozen=True)
class ContractionProblem:
    """What legality and cost depend on: extents, dtypes, layouts and the machine.

    `a_contiguous`, `b_contiguous` name the axis along which the operand is contiguous ("m", "n", "k", or "" for none);
    `a_mapped`, `b_mapped` say that a prologue is computed while loading. `b_panels` is the width of the panels that B
    was packed into once and for all, 0 where it was not; `quads` says that they hold bytes which are multiplied four at
    a time; `products` counts those of one A that are formed side by side, each of n columns.
    """

    m: int
    n: int
    k: int
    batch: int
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    accumulator: DType
    a_contiguous: str
    b_contiguous: str
    a_mapped: bool
    b_mapped: bool
    outputs: int
    epilogue_operations: int
    target: Target
    workers: int
    native_bf16: bool
    b_panels: int = 0
    quads: bool = False
    products: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.m, self.n, self.k, self.batch

    @property
    def apart(self) -> ContractionProblem:
        """The products one after the other, as one product by all of their panels: what they read lies where it does
        for the kernel that forms them together.
        """
        lanes = _columns(self, 1)
        width = lanes if self.n <= lanes else 2 * lanes
        return replace(self, products=1, n=-(-self.n // width) * width * self.products, b_panels=width)

    @property
    def pairs(self) -> bool:
        """Whether the machine multiplies bf16 pairs into fp32 here."""
        return self.native_bf16 and self.a_dtype == bf16 and self.b_dtype == bf16 and self.accumulator == fp32

    @property
    def element_bytes(self) -> int:
        """Bytes of one packed operand element."""
        return 1 if self.quads else 2 if self.pairs else self.accumulator.itemsize


def _registers(schedule: Schedule, problem: ContractionProblem) -> bool:
    mr, nr = schedule.integers("micro")
    if schedule["order"] == "dots":
        return (mr * nr + nr + 1) * _dot_vectors(problem) <= problem.target.vector_registers
    lanes = problem.target.vector_bits // (8 * problem.accumulator.itemsize)
    columns = -(-nr // lanes) * problem.products
    return (mr + problem.quads) * columns + columns + 1 <= problem.target.vector_registers


def _dot_vectors(problem: ContractionProblem) -> int:
    """How many times as many registers sums of dot products take as those of fp32."""
    return problem.accumulator.itemsize // fp32.itemsize


def _full_lanes(schedule: Schedule, problem: ContractionProblem) -> bool:
    return schedule["order"] == "dots" or schedule.integers("micro")[1] % (problem.target.vector_bits // 32) == 0


def _blocks(schedule: Schedule, problem: ContractionProblem) -> bool:
    mc, nc, kc = schedule.integers("tile")
    mr, nr = schedule.integers("micro")
    return mc >= mr and nc >= nr and kc % 2 == 0


def _scratch(schedule: Schedule, problem: ContractionProblem) -> bool:
    mc, nc, kc = schedule.integers("tile")
    size = problem.element_bytes
    packed = (mc * kc * size if schedule["pack_a"] else 0) + (nc * kc * size if schedule["pack_b"] else 0)
    return packed <= 16 << 20


def _accumulates(schedule: Schedule, problem: ContractionProblem) -> bool:
    mc, nc, kc = schedule.integers("tile")
    if schedule["sums"] == "registers":
        return kc >= problem.k or schedule["order"] == "dots"
    if schedule["sums"] == "output":
        return kc >= problem.k or (problem.out_dtype == problem.accumulator and problem.outputs == 1)
    mr = schedule.integers("micro")[0]
    return problem.m <= mc // mr * mr and mc * nc * problem.accumulator.itemsize <= 4 << 20


def _splits(schedule: Schedule, problem: ContractionProblem) -> bool:
    return schedule["parallel"] != "batch" or problem.batch > 1


def _prologue(schedule: Schedule, problem: ContractionProblem) -> bool:
    a_stays = not problem.a_mapped and not problem.quads
    b_stays = not problem.b_mapped or schedule["order"] == "dots"
    return bool((schedule["pack_a"] or a_stays) and (schedule["pack_b"] or b_stays))


def _streams(schedule: Schedule, problem: ContractionProblem) -> bool:
    return bool(schedule["pack_b"] or problem.b_panels or problem.b_contiguous == "n" or schedule["order"] == "dots")


def _panels(schedule: Schedule, problem: ContractionProblem) -> bool:
    return not problem.b_panels or (schedule.integers("micro")[1] == problem.b_panels and not schedule["pack_b"])


def _siblings(schedule: Schedule, problem: ContractionProblem) -> bool:
    return problem.products == 1 or (schedule["sums"] == "registers" and bool(problem.b_panels))


def _dots(schedule: Schedule, problem: ContractionProblem) -> bool:
    if schedule["order"] != "dots":
        return True
    packed = schedule["pack_a"] or schedule["pack_b"] or schedule["parallel"] == "rows"
    once = not problem.b_mapped or schedule.integers("micro")[0] >= problem.m
    return not packed and once and schedule["sums"] == "registers" and dots_fit(problem)


def dots_fit(problem: ContractionProblem) -> bool:
    """Whether a product can be made of dot products: both operands contiguous along K; A, which is read for each few
    columns anew, not computed on the way, and B only where one tile has all rows.
    """
    along = problem.a_contiguous == problem.b_contiguous == "k" and not problem.a_mapped
    once = not problem.b_mapped or problem.m <= MOST_DOTS
    return along and once and problem.accumulator in (fp32, fp64) and not problem.b_panels


RULES: tuple[Rule[ContractionProblem], ...] = (
    Rule(
        "vector-registers", "accumulators, one row of B and one element of A must fit the vector registers", _registers
    ),
    Rule("full-lanes", "the register tile's width is a whole number of vectors", _full_lanes),
    Rule("block-holds-tile", "cache blocks hold at least one register tile, and K blocks are even", _blocks),
    Rule("scratch-memory", "packed blocks take at most 16 MiB per worker", _scratch),
    Rule(
        "sums-have-a-place",
        "several K blocks add up in an output of the accumulator's dtype, or in scratch memory for all rows",
        _accumulates,
    ),
    Rule("prologue-needs-packing", "a mapped operand is computed while it is packed", _prologue),
    Rule("dots-along-k", "dot products read operands that are contiguous along K where they are", _dots),
    Rule("batch-to-split", "only a batch can be cut into shares along the batch", _splits),
    Rule("packed-constant", "panels of a constant are as wide as the register tile, and are not packed again", _panels),
    Rule("siblings-in-registers", "two products are formed together of packed constants, over all of K", _siblings),
    Rule("strided-needs-packing", "B is read in place only where its rows are contiguous", _streams),
)


def knobs(problem: ContractionProblem) -> tuple[Knob, ...]:
    """The knobs of a matrix product, widest useful choices for this problem."""
    lanes = problem.target.vector_bits // 32
    micro = tuple((mr, nr * lanes) for nr in (1, 2, 3, 4, 8) for mr in (1, 2, 4, 6, 8, 10, 12, 14, 16, 28))
    if dots_fit(problem):
        micro += tuple((mr, nr) for mr in range(1, MOST_DOTS + 1) for nr in (2, 4, 8))
    deep = DEPTHS if problem.b_panels or problem.out_dtype != problem.accumulator or problem.pairs else (512,)
    blocks_k = tuple(sorted({8, 16, 32, 64, 128, 256, 384, *deep}))
    tiles = tuple(
        (mc, nc, kc)
        for mc in (16, 48, 96, 144, 192, 384, 768)
        for nc in (32, 128, 256, 512, 1024, 2048, 4096)
        for kc in blocks_k
    )
    return (
        Knob("tile", tiles, "cache blocks (MC, NC, KC): A's block for L2, B's block for L3"),
        Knob("micro", micro, "register tile (MR, NR)"),
        Knob("unroll", (1, 2, 4, 8), "steps of the innermost loop emitted one after another"),
        Knob("pack_a", (False, True), "copy blocks of A into contiguous rows"),
        Knob("pack_b", (False, True), "copy blocks of B into panels as wide as the register tile"),
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
    """A schedule that is good on every machine seen so far; tuning improves on it.

    Blocks of 144 x 2048 x 256 with the rows outside reach 0.98 of MKL's AVX-512 path on Zen 4 (1024 and 2048 cubed).
    Few rows are one block, whose sums stay in the L2 cache; workers share out the columns, so that each packs its own.
    """
    rows = 12 if problem.target.vector_registers >= 32 else 6
    if problem.b_panels:
        return packed_schedule(problem)
    if dots_fit(problem) and problem.m <= MOST_DOTS:
        return dots_schedule(problem)
    flat = problem.m <= MOST_ROWS
    schedule = Schedule(
        tile=(144, 4096 if flat else 2048, 256),
        micro=(rows, _columns(problem, 2)),
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
    if problem.pairs and problem.k > DEPTHS[-1] and 12 < problem.m <= MOST_ROWS and problem.n <= MOST_ROWS:
        schedule = schedule.replace(tile=(144, 128, 512), micro=(8, _columns(problem, 2)))
    if not problem.a_mapped and not problem.pairs and problem.target.vector_registers >= 32:
        schedule = _small_sides(problem, schedule, in_place)
    if problem.batch >= problem.workers > 1:
        schedule = schedule.replace(parallel="batch")
    if _accumulates(schedule, problem):
        return schedule
    if problem.k <= DEPTHS[-1]:
        return schedule.replace(tile=_whole_depth(problem))
    return _deep(problem, schedule)


def _small_sides(problem: ContractionProblem, schedule: Schedule, in_place: bool) -> Schedule:
    """Products that read an operand only once, or from the L1 cache: what is not packed need not be read twice.

    One thread of Zen 4, fp32, MKL's time over ours, packed and so: a million rows, K = N = 8, 0.40 and 0.87; K = N =
    64, 0.84 and 1.14; 4096 products of 32 x 64 x 32, 0.69 and 0.93; 64 x 1,000,000 x 64, 0.80 and 0.98.
    """
    lanes = _columns(problem, 1)
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
    if problem.batch > 1 and problem.m <= MOST_ROWS and both <= SMALL_BYTES:
        micro = (16, lanes) if vectors == 1 else (8, 2 * lanes)
        return schedule.replace(tile=(144, 1024, 256), micro=micro, pack_a=False, pack_b=False)
    if problem.k > DEPTHS[-1] and 12 < problem.m <= MOST_ROWS and problem.n <= MOST_ROWS:
        return schedule.replace(tile=(144, 128, 384), micro=(8, 2 * lanes), pack_a=False, pack_b=False, sums="scratch")
    return schedule


def _deep(problem: ContractionProblem, schedule: Schedule) -> Schedule:
    """Sums that the output does not hold, over a K that no block holds: all rows of a block of columns in scratch
    memory, as narrow as that takes.
    """
    rows = schedule.integers("micro")[0]
    mc = -(-problem.m // rows) * rows
    nc = _columns(problem, 2)
    while nc < 1024 and mc * 2 * nc * problem.accumulator.itemsize <= 4 << 20:
        nc *= 2
    kc = max(16, min(512, (8 << 20) // (mc * problem.element_bytes) // 16 * 16))
    order = "columns" if mc * kc * problem.element_bytes <= PACKED_BLOCK_BYTES else "rows"
    return schedule.replace(
        tile=(mc, nc, kc), micro=(rows, _columns(problem, 2)), pack_b=True, sums="scratch", order=order
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
    block_bytes = PACKED_ROWS_BYTES if problem.m <= MOST_ROWS else PACKED_BLOCK_BYTES
    mc = next((rows for rows in ROWS if problem.m <= rows // height * height), ROWS[-1])
    while mc > ROWS[0] and mc * kc * problem.element_bytes > block_bytes:
        mc = ROWS[ROWS.index(mc) - 1]
    deep = kc < problem.k
    schedule = Schedule(
        tile=(144 if deep else mc, 2048 // problem.products, kc),
        micro=(height, problem.b_panels),
        unroll=4,
        pack_a=problem.m > 1 or problem.a_mapped or problem.quads,
        pack_b=False,
        sums="registers" if not deep else "scratch" if problem.m <= MOST_ROWS else "output",
        order="columns" if not deep or problem.m <= MOST_ROWS else "rows",
        parallel="columns" if problem.m <= MOST_ROWS else "rows",
        pipeline_depth=2,
        fetch_ahead=32 if 8 <= problem.m <= 32 else 0,
        fusion=True,
    )
    if problem.batch >= problem.workers > 1:
        schedule = schedule.replace(parallel="batch")
    return schedule


def dots_schedule(problem: ContractionProblem) -> Schedule:
    """Few rows by weights [N, K]: as many columns at once as there are registers for."""
    sums = 16 // _dot_vectors(problem)
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


SMALL_BYTES = 24 << 10
"""Operands of one product of a batch that stay in the L1 cache."""
MOST_DOTS = 8
"""Rows up to which weights [N, K] are multiplied as they are; more are worth packing them."""
DEPTHS = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 11264, 12288, 14336, 16384)
"""Depths of K blocks that hold all of K."""
PACKED_ROWS_BYTES = 8 << 20
"""The most that a few rows of A take beside packed weights, whose panels are read past them once."""
PACKED_BLOCK_BYTES = 3 << 20
"""The most that a block of many rows takes: it streams from the L3 cache past a panel in L2."""
ROWS = (16, 48, 96, 144, 192)
"""Heights of blocks of A beside packed weights."""

MOST_ROWS = 128
"""Rows up to which a product is bound by reading B: fp32 leaves it in place, as packing would read it twice."""
MOST_PAIR_ROWS = 32
"""The same for bf16 pairs, which are multiplied twice as fast and interleaved anew for every register tile in place."""


def _columns(problem: ContractionProblem, vectors: int) -> int:
    """The width of a register tile of `vectors` vectors a row, not below the least that the rules allow."""
    bits = problem.target.vector_bits
    return max(vectors * bits // (8 * problem.accumulator.itemsize), bits // 32)


def _few_rows(problem: ContractionProblem, schedule: Schedule) -> Schedule:
    """B in place, with blocks of a depth that leaves B's rows and the sums in the caches beside each other.

    Two or three heights serve all numbers of rows: sums in scratch memory need no masks for the rows that a register
    tile lacks. One thread of Zen 4, K = N = 4096, oneDNN's time with weights packed beforehand over ours: fp32, 8 rows
    1.00, 12 rows 0.94, 16 rows 1.05, 32 rows 1.01, 128 rows 0.99; bf16, 8 rows 1.00, 12 rows 0.98, 32 rows 0.86.
    """
    wide = problem.target.vector_registers >= 32
    if problem.m <= 1:
        rows, vectors, tile, unroll = 1, 4, (48, 4096, 8), 1
    elif problem.pairs:
        rows, vectors, tile, unroll = 12, 2, (48, 4096, 256), 4
    elif problem.m <= 12:
        rows, vectors, tile, unroll = 12, 2, (144, 4096, 16), 4
    else:
        rows, vectors, tile, unroll = 16, 1, (144, 1024, 256), 4
    if not wide:
        rows, vectors = min(rows, 6), 2
    elif problem.accumulator.itemsize == 8:
        rows, vectors = min(rows, 12), 2
    micro = (rows, _columns(problem, vectors))
    return schedule.replace(tile=tile, micro=micro, unroll=unroll, pack_b=False)


def _whole_depth(problem: ContractionProblem) -> tuple[int, int, int]:
    """Blocks whose depth covers K, narrowed until those of both operands fit 5 MiB a worker.

    Two workers of Zen 4 on 2048 cubed in bf16: 0.99 of oneDNN's time over ours with 1024 columns, 0.93 with 2048.
    """
    kc = next((depth for depth in (256, 384, 512, 1024, 2048, 4096, 8192, 16384) if depth >= problem.k), 16384)
    mc = max(48, min(144, (512 << 10) // (kc * problem.element_bytes) // 48 * 48))
    nc = 1024
    while nc > 128 and (mc + nc) * kc * problem.element_bytes > 5 << 20:
        nc //= 2
    return mc, nc, kc


def space(problem: ContractionProblem) -> Space[ContractionProblem]:
    """All schedules of one matrix product."""
    return Space(knobs(problem), RULES, problem, default_schedule(problem))
