"""The knobs, rules and default schedule of convolutions on CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tessera.scheduling.families.convolution.blocks import unit_step
from tessera.scheduling.families.convolution.problem import (
    ConvolutionProblem,
    block_of,
    in_unit,
    padded_depth,
    scratch_bytes,
)
from tessera.scheduling.language.columns import Knobs, Number, divided, no
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, UNIT_ROWS, VECTOR
from tessera.scheduling.lowering.tails import row_tails, row_tiles
from tessera.scheduling.model.shares import last_bytes, near_bytes, second_bytes

LARGEST_SCRATCH = 8 << 20
MOST_TILES = 4
"""Tiles of sums in a register tile of a matrix unit: with operands, as many as it has registers."""
LEAST_SUM, LEAST_PRODUCTS = 8, 100_000
"""Products of a result, and of all, from which the matrix unit multiplies."""
UNIT_HEIGHTS, MOST_APART = (16, 14, 8), 128
"""Pixels of two rows that the matrix unit multiplies together, in rows of so many results at most."""
FEW_CHANNELS = 32
"""Channels up to which a row of the window is one run in memory: the loop over channels alone would be too short."""
FEW_OUTPUTS = 64
"""Channels of results up to which a copy of the image costs more than its pixels lying apart (windows of one pixel)."""
MANY_OUTPUTS = 1024
"""The same where the matrix unit multiplies, which needs no copy to be fast."""
SHORT_SUM = 128
"""Products of a result up to which its store counts."""
FEW_ROWS = 8
"""Rows of results up to which those that meet padding are many: 2 of 7 leave out a third of a window of 3 rows."""
MOST_COLUMNS, MOST_ROWS = 1 << 14, 1 << 8
"""Results along either side of a block, however few bytes they take."""
BLOCK_ROWS = 8
"""Rows of results that a block had better have: narrower ones copy less around them."""
WORTH_ANOTHER = 26, 25
"""The gain, as a ratio of integers, from which rows of results have a register tile of their own. One thread of a busy
Zen 3, oneDNN's processor time, weights packed, over that of usual tiles of 6 pixels and of these: 7 x 7 pixels, 512
channels, 3 x 3, in blocks, 0.75, as one block 0.89, and of 4 pixels 1.02; 1024 to 2048, each second pixel, 0.77 and
0.99; 14 x 14, 256 channels, 3 x 3, 0.99 and 1.05; 28 x 28, 128 channels, 0.91 and 0.97; but 56 x 56 in tiles of 4
pixels 1.00 and 0.88."""
EVEN = 0.9
"""How even shares have to be: the mean of workers' work over the largest."""


def _registers(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    rows, pixels, channels = schedule.integers("micro")
    vectors = divided(channels * problem.accumulator.itemsize * 8, problem.target.vector_bits)
    fits = rows * pixels * vectors + vectors + 1 <= problem.target.vector_registers
    return fits | in_unit(schedule, problem)


def _matrix_unit(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    rows, pixels, channels = schedule.integers("micro")
    tiles = rows * divided(pixels, UNIT_ROWS) * divided(channels, UNIT_ROWS)
    alike = (pixels <= UNIT_ROWS) | (pixels % 2 == 0)
    return no(in_unit(schedule, problem)) | ((tiles <= MOST_TILES) & alike & no(schedule.flag("tails")))


def _packed(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    return schedule.integers("micro")[2] == problem.panel


def _window(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    return schedule.equals("window", (*problem.kernel, problem.depth))


def _whole_tiles(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    (rows, columns), (ry, mr, _) = schedule.integers("tile"), schedule.integers("micro")
    return (rows % ry == 0) & (columns % mr == 0)


def _in_place(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    apart = problem.turned or problem.mapped or problem.depth != padded_depth(problem)
    whole = not apart and not problem.window.is_padded
    return schedule.flag("pack_a") | (no(schedule.flag("merge")) & whole)


def _runs(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    return no(schedule.flag("merge")) | (problem.window.dilation[1] == 1)


def _scratch(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    (rows, columns), (ry, mr, _) = schedule.integers("tile"), schedule.integers("micro")
    least = (rows == ry) & (columns == mr)
    return no(schedule.flag("pack_a")) | least | (scratch_bytes(schedule, problem) <= LARGEST_SCRATCH)


def _something_to_cut(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    return no(schedule.equals("parallel", "batch")) | (problem.images > 1)


RULES: tuple[Rule[ConvolutionProblem], ...] = batched(
    Rule("vector-registers", "sums, a row of weights and a pixel must fit the vector registers", _registers),
    Rule(
        "matrix-unit",
        "sums fit four tiles of the matrix unit, all as high, and it has no smaller ones for the end of a row",
        _matrix_unit,
    ),
    Rule("packed-weights", "a register tile is as wide as the panels that weights are packed in", _packed),
    Rule("window-matches", "the window and its channels are those of the problem", _window),
    Rule("block-of-whole-tiles", "a block of results is a whole number of register tiles", _whole_tiles),
    Rule(
        "in-place-without-padding",
        "the image is read in place only without padding and prologue, channels together",
        _in_place,
    ),
    Rule("runs-of-neighbours", "a row of the window is one run only where its columns are neighbours", _runs),
    Rule("scratch-memory", "a block of the image takes at most 8 MiB, or is as small as blocks get", _scratch),
    Rule("batch-to-split", "only several images or groups can be cut into shares", _something_to_cut),
)


def _micros(problem: ConvolutionProblem) -> tuple[tuple[int, int, int], ...]:
    heights = (14, 13, 12, 11, 10, 8, 7, 6, 4, 2, 1)
    high = (32, 28, 24, 16) if problem.has_unit else ()
    return tuple((rows, pixels, problem.panel) for rows in (1, 2, 4) for pixels in (*high, *heights))


def _tiles(start: tuple[int, int]) -> Iterator[tuple[int, int]]:
    rows, columns = start
    for down in (1, 2, 4):
        for across in (1, 2, 4):
            yield max(1, rows // down), max(1, columns // across)
            yield rows * down, columns * across


def space(problem: ConvolutionProblem) -> Space[ConvolutionProblem]:
    """All schedules of one convolution."""
    start = default_schedule(problem)
    starts = (_vector_schedule(problem), _matrix_schedule(problem)) if problem.has_unit else ()
    tiles = tuple(sorted({tile for each in (start, *starts) for tile in _tiles(each.integers("tile"))}))
    unit = Knob("unit", (VECTOR, MATRIX), "the instructions that multiply: vectors, or the matrix unit's tiles")
    knobs = (
        Knob(
            "tile",
            tiles,
            "rows and columns of a block of results, whose pixels are in scratch memory together; more of shorter rows",
        ),
        Knob("micro", _micros(problem), "register tile: rows, columns and channels of results"),
        *([unit] if problem.has_unit else []),
        Knob("window", ((*problem.kernel, problem.depth),), "rows and columns of the window, channels"),
        Knob("unroll", (1, 2, 4, 8), "steps of the innermost loop emitted one after another"),
        Knob("tails", (True, False), "smaller register tiles for the end of a row, which take twice the code"),
        Knob("pack_a", (True, False), "copy blocks of the image into scratch memory"),
        Knob("merge", (False, True), "sum over a row of the window and its channels in one loop"),
        Knob("order", ("columns", "rows"), "which loop is outside: over panels of channels, or over pixels"),
        Knob("parallel", ("rows", "pixels", "columns", "batch"), "the dimension that is cut into shares: of workers"),
        Knob("pipeline_depth", (1, 2), "2: where results go is fetched while they are summed"),
        Knob("fusion", (True, False), "prologues and epilogues inside this kernel"),
    )
    return Space(knobs, RULES, problem, start, starts)


def default_schedule(problem: ConvolutionProblem) -> Schedule:
    """On the matrix unit, where there is one that suits."""
    return _matrix_schedule(problem) if _suits_unit(problem) else _vector_schedule(problem)


def _suits_unit(problem: ConvolutionProblem) -> bool:
    """Whether products are many, and sums long enough to be worth the way through scratch memory (one thread of a Xeon
    beside other jobs, the time of vectors over that of the unit: 50 thousand products in sums of 32 0.88, 120 thousand
    in sums of 25 1.31; 5 million in sums of 2 0.86, 25 thousand in sums of 8 1.08; groups of 4 and 16 channels, in
    sums of 36 and 144, 2.5 and 4.3).
    """
    long = problem.depth * math.prod(problem.kernel) >= LEAST_SUM
    return problem.has_unit and long and problem.products >= LEAST_PRODUCTS


def _matrix_schedule(problem: ConvolutionProblem) -> Schedule:
    """Register tiles of the unit, as high as rows of results let them be."""
    merge = _merges(problem)
    if merge:
        depth = padded_depth(problem)
        merge = unit_step(problem.kernel[1] * depth) >= unit_step(depth)
    schedule = Schedule(
        tile=(1, 1),
        micro=(*_unit_tile(problem), problem.panel),
        unit=MATRIX,
        window=(*problem.kernel, problem.depth),
        unroll=1,
        tails=False,
        pack_a=True,
        merge=merge,
        order="rows" if _near_weights(problem) else "columns",
        parallel="columns",
        pipeline_depth=1,
        fusion=True,
    )
    schedule = schedule.replace(tile=_tile(schedule, problem))
    schedule = schedule.replace(parallel=_shares(schedule, problem))
    near = schedule.replace(pack_a=False)
    return near if _in_place(near, problem) and _unit_reads_in_place(problem) else schedule


def _unit_reads_in_place(problem: ConvolutionProblem) -> bool:
    """Whether the matrix unit, which outruns a copy, reads pixels where they lie: unless many panels of weights walk
    pixels far apart (one thread of a Xeon beside other jobs, time in place over that with a copy: 56 x 56 pixels, 256
    channels to 64 0.73; 14 x 14, 1024 to 512 0.9; 7 x 7, 1024 to 2048, each second one 1.5).
    """
    near = (
        problem.depth * problem.element.itemsize <= near_bytes(problem.target) // 16 and problem.outputs <= MANY_OUTPUTS
    )
    return problem.kernel == (1, 1) and near


def _unit_tile(problem: ConvolutionProblem) -> tuple[int, int]:
    """Rows and pixels of a register tile of the matrix unit: of few heights, so that sizes of images share kernels, the
    one that computes the fewest pixels past the end of a row.
    """

    def computed(height: int) -> int:
        return -(-problem.columns // height) * height

    if problem.rows > 1 and problem.columns <= MOST_APART:
        return 2, min(UNIT_HEIGHTS, key=computed)
    return 1, UNIT_ROWS if problem.columns <= UNIT_ROWS else 2 * UNIT_ROWS


def _merges(problem: ConvolutionProblem) -> bool:
    return problem.window.dilation[1] == 1 and problem.kernel[1] > 1 and problem.depth < FEW_CHANNELS


def _vector_schedule(problem: ConvolutionProblem) -> Schedule:
    """Register tiles as high as there are registers for, and blocks of which the second cache holds several. Sizes of
    images hardly matter, so that few kernels serve all.

    On one thread of Zen 4 ResNet-50's layers take 0.93 of oneDNN's time in fp32, 0.95 in bf16 (geometric means, batch
    of 1, weights packed beforehand in both).
    """
    rows, pixels, tails = _register_tile(problem)
    schedule = Schedule(
        tile=(1, 1),
        micro=(rows, pixels, problem.panel),
        **({"unit": VECTOR} if problem.has_unit else {}),
        window=(*problem.kernel, problem.depth),
        unroll=4,
        tails=tails,
        pack_a=True,
        merge=_merges(problem),
        order="rows" if _near_weights(problem) else "columns",
        parallel="columns",
        pipeline_depth=2 if _waits_for_stores(problem) else 1,
        fusion=True,
    )
    schedule = schedule.replace(tile=_tile(schedule, problem))
    schedule = schedule.replace(parallel=_shares(schedule, problem))
    near = schedule.replace(pack_a=False)
    return near if _in_place(near, problem) and _is_read_in_place(problem) else schedule


def _is_read_in_place(problem: ConvolutionProblem) -> bool:
    """Whether the copy of the image would cost more than it saves: an image that the caches hold, of which few products
    are made, and whose pixels are so near that a register tile of them fits the first cache's sets.
    """
    target = problem.target
    pixel = problem.depth * problem.element.itemsize
    image = pixel * problem.images * problem.rows * problem.columns
    product = problem.kernel == (1, 1) and not problem.pairs and problem.image_dtype == problem.element
    return (
        product
        and problem.outputs <= FEW_OUTPUTS
        and pixel <= near_bytes(target) // 16
        and image <= last_bytes(target) // 8
    )


def _weights_bytes(problem: ConvolutionProblem) -> int:
    """Bytes of all packed weights of a group."""
    panels = -(-problem.outputs // problem.panel) * problem.panel
    return panels * padded_depth(problem) * math.prod(problem.kernel) * problem.element.itemsize


def _near_weights(problem: ConvolutionProblem) -> bool:
    """Whether weights stay in the second cache, so that each pixel's results are written at once."""
    return _weights_bytes(problem) <= second_bytes(problem.target) // 4


def _waits_for_stores(problem: ConvolutionProblem) -> bool:
    """Whether sums are so short that stores to lines which no cache holds, as these have a sixteenth of the last one,
    make themselves felt.
    """
    results = problem.images * problem.rows * problem.columns * problem.outputs * problem.out_dtype.itemsize
    return results > last_bytes(problem.target) // 16 and problem.depth * math.prod(problem.kernel) <= SHORT_SUM


def _register_tile(problem: ConvolutionProblem) -> tuple[int, int, bool]:
    """Rows and pixels of a register tile, and whether smaller ones end a row: many sums in flight, so that weights are
    read seldom. Where a row has few pixels, of two rows, unless each had better leave out the rows of the window that
    lie in the padding. Somewhat fewer pixels where a row then has no end that waits for its own sums, and there are not
    registers for so many that rows of all sizes share tiles.
    """
    vectors = -(-problem.panel * problem.accumulator.itemsize * 8 // problem.target.vector_bits)
    most = max(1, min(14, (problem.target.vector_registers - vectors - 1) // vectors))
    leaves_out = problem.rows <= FEW_ROWS and problem.window.padding[0] > 0
    if problem.rows > 1 and not leaves_out and problem.columns <= most // 2:
        return 2, max(1, most // 2), True
    if problem.target.vector_registers >= 32:
        return 1, most, True
    busy = problem.target.fma_per_cycle * problem.target.fma_latency

    def taken(height: int, tails: bool) -> Number:
        """Time of a row, as vectors multiplied without a wait: each tile takes as many as the units begin until the
        first one is done, and a pixel's to begin. In integers, so that rows of many sizes are told apart by rules.
        """
        heights = (height, *row_tails(height)) if tails else (height,)
        counts = row_tiles(problem.columns, heights).items()
        return sum(count * (max(each * vectors, busy) + vectors) for each, count in counts)

    ways = [(most, True), *[(height, tails) for height in (most, most - 1, most * 2 // 3) for tails in (True, False)]]
    times = {way: taken(*way) for way in ways if way[0] > 1 or way == ways[0]}
    best = min(times, key=lambda way: times[way])
    more, less = WORTH_ANOTHER
    return 1, *(best if times[best] * more < times[ways[0]] * less else ways[0])


def _tile(schedule: Schedule, problem: ConvolutionProblem) -> tuple[int, int]:
    """The widest block that has rows enough, as many as fit a quarter of the second cache, most of which is left to the
    weights that stream past it; a half where all of an image then is one block, and weights are streamed once.
    """
    ry, mr, _ = schedule.integers("micro")

    def nbytes(rows: int, columns: int) -> Number:
        return scratch_bytes(schedule.replace(tile=(rows, columns)), problem)

    def fits(rows: int, columns: int) -> bool:
        return bool(nbytes(rows, columns) <= second_bytes(problem.target) // 4)

    if problem.rows == 1:
        return ry, _most(mr, MOST_COLUMNS, lambda columns: fits(ry, columns))
    whole = max(-(-problem.rows // ry), 1) * ry, max(-(-problem.columns // mr), 1) * mr
    if not fits(*whole) and nbytes(*whole) <= second_bytes(problem.target) // 2 < _weights_bytes(problem):
        return whole
    widths = [mr * tiles for tiles in (16, 8, 4, 2)]
    columns = next((width for width in widths if fits(BLOCK_ROWS, width)), mr)
    return _most(ry, MOST_ROWS, lambda rows: fits(rows, columns)), columns


def _most(unit: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple of a unit that fits; the unit itself where nothing does."""
    low, high = 1, max(1, most // unit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * unit) else (low, middle - 1)
    return low * unit


def _shares(schedule: Schedule, problem: ConvolutionProblem) -> str:
    """The dimension that is cut into shares: the first of images, rows and pixels of results that gives workers even
    ones, else the one with the most even. An image that a few blocks hold is copied by all, each for its own channels.
    """
    if problem.workers == 1:
        return "pixels" if problem.rows == 1 else "rows"
    (ry, mr, _), (by, bx) = schedule.integers("micro"), block_of(schedule, problem)
    counts = {"rows": -(-problem.rows // ry), "pixels": -(-problem.columns // mr)}
    channels = {"columns": -(-problem.outputs // problem.panel)}
    workers = problem.workers
    few = -(-problem.rows // by) * -(-problem.columns // bx) < workers
    counts = {**channels, **counts} if few else {**counts, **channels}
    if problem.images > 1:
        counts = {"batch": problem.images, **counts}

    def even(name: str) -> float:
        count = counts[name]
        return count / (workers * -(-count // workers)) if count else 0.0

    return next((name for name in counts if even(name) >= EVEN), max(counts, key=even))
