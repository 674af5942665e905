"""The knobs, rules and default schedule of kernels that reduce over a sliding window, on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tessera.scheduling.families.common_rules import cuts_for_several, leaves_caches, streams_what_is_large
from tessera.scheduling.families.window.buffer import LINE, ring_shape
from tessera.scheduling.language.columns import Knobs, Number, divided, larger
from tessera.scheduling.language.expression import post_order
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Geometry, WindowSpec
from tessera.scheduling.model.shares import second_bytes
from tessera.target import Target

FEW_TAPS = 9
"""Windows of so few taps wait for the rows that they read: two rows of results at a time read four, in long runs. 3 x 3
windows on Zen 4: 1.2 times as fast as four rows of two vectors at 112 x 112 and 28 x 28 (5 x 5 at 56 x 56: 0.95)."""
INSIDE = 0.75
"""The share of register tiles inside the image from which on images are read in place. 3 x 3 windows in tiles of two by
two are 1.07 (Zen 4) and 2.1 (a Xeon with AMX) times as fast in place at 56 x 56 (0.86 inside); at 28 x 28 (0.73) a ring
of rows is.
"""


@dataclass(frozen=True)
class WindowProblem:
    """What legality and cost depend on.

    `images` is the number of planes (lanes "x": images times channels) or of images (lanes "c"), `result` the extents
    of the result's rows, columns and channels (1 for planes); `image_bytes`, `bytes_in`, `bytes_out` the compulsory
    traffic of the image, of all operands and of the results; `operations` the vector instructions per tap and vector,
    `after` those per vector of the result; `free` the operands that vary from tap to tap; `sums_bytes` the size of an
    element as it is added up.
    """

    images: int
    result: tuple[int, int, int]
    lanes_axis: Literal["x", "c"]
    geometry: Geometry
    image_bytes: int
    bytes_in: int
    bytes_out: int
    operations: int
    after: int
    free: int
    sums_bytes: int
    target: Target
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.images, *self.result

    @property
    def rows(self) -> int:
        """The extent along which a register tile has several rows: output rows, or columns."""
        return self.result[0 if self.lanes_axis == "x" else 1]

    @property
    def lanes(self) -> int:
        """The extent along vectors: output columns, or channels."""
        return self.result[1 if self.lanes_axis == "x" else 2]

    @property
    def vector(self) -> int:
        """Elements of fp32 in a vector register."""
        return self.target.vector_bits // 32

    @property
    def taps(self) -> int:
        """The places of the window."""
        return len(self.geometry.taps)


def window_problem(spec: WindowSpec, target: Target, extents: Mapping[str, int], workers: int = 1) -> WindowProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    sizes = [argument.dtype.itemsize for argument in spec.arguments]
    for index, argument in enumerate(spec.arguments):
        for axis in argument.axes:
            sizes[index] *= extents[axis]
    first = min(output.argument for output in spec.outputs)
    by_columns = spec.lanes == "x"
    outer = [axis for axis in spec.outer if axis != "y"]
    images = 1
    for axis in outer:
        images *= extents[axis]
    values = post_order(output.value for output in spec.outputs)
    below = post_order(value.arguments[0] for value in values if value.is_reduction)
    image = next(i for i, argument in enumerate(spec.arguments) if "h" in argument.axes)
    arithmetic = [value for value in below if value.operation not in ("load", "constant", "scalar")]
    return WindowProblem(
        images=images,
        result=(extents["y"], extents["x"], 1 if by_columns else extents["c"]),
        lanes_axis="x" if by_columns else "c",
        geometry=spec.geometry,
        image_bytes=sizes[image],
        bytes_in=sum(sizes[:first]),
        bytes_out=sum(sizes[first:]),
        operations=max(1, len(arithmetic)),
        after=len(values) - len(below),
        free=sum(1 for value in below if value.operation == "load" and "ky" in value.axes and "y" not in value.axes),
        sums_bytes=max((value.dtype.itemsize for value in values if value.is_reduction), default=4),
        target=target,
        workers=workers,
    )


def _registers(schedule: Knobs, problem: WindowProblem) -> Number:
    vectors = schedule.integer("vectorize")
    sums = schedule.integer("rows") * schedule.integer("columns") * vectors
    return sums + vectors * 2 + 2 <= problem.target.vector_registers


def _lanes(schedule: Knobs, problem: WindowProblem) -> Number:
    width = schedule.integer("vectorize") * problem.vector
    whole = schedule.integers("tile")[1] % width == 0
    return whole & ((width == problem.vector) | (width < 2 * problem.lanes))


def _within(schedule: Knobs, problem: WindowProblem) -> Number:
    height, width, _ = problem.result
    rows, columns = schedule.integer("rows"), schedule.integer("columns")
    held = rows if problem.lanes_axis == "x" else columns
    in_block = schedule.integers("tile")[0] >= held
    return in_block & (rows <= max(height, 1)) & (columns <= max(width, 1))


def _channels(schedule: Knobs, problem: WindowProblem) -> Number:
    plain = (schedule.integer("columns") == 1) & schedule.equals("buffering", "direct")
    return plain | (problem.lanes_axis == "c")


def _ring_fits(schedule: Knobs, problem: WindowProblem) -> Number:
    fits = 2 * ring_bytes(schedule, problem) <= second_bytes(problem.target)
    return schedule.equals("buffering", "direct") | fits


def ring_bytes(schedule: Knobs, problem: WindowProblem) -> Number:
    """Scratch memory of a ring of rows, whose elements are of up to four bytes, or eight."""
    rows, columns, channels = ring_shape(schedule, problem.geometry)
    return rows * (columns * channels + LINE) * problem.sums_bytes


def _useful(schedule: Knobs, problem: WindowProblem) -> Number:
    rows, lanes = schedule.integers("tile")
    return (rows <= max(32, 2 * problem.rows)) & (lanes <= max(32, 2 * problem.vector, 2 * problem.lanes))


RULES: tuple[Rule[WindowProblem], ...] = batched(
    Rule("vector-registers", "the sums of a register tile and the vectors they are made of must not spill", _registers),
    Rule("whole-vectors", "a block holds whole steps of vectors, of which most lanes are used", _lanes),
    Rule("rows-within-block", "a block, and the result, holds a register tile's rows and columns", _within),
    Rule("channels-along-vectors", "only then a register tile has columns, or a ring of rows", _channels),
    Rule("ring-fits-cache", "the ring of rows takes at most half of the second cache", _ring_fits),
    Rule("tile-within-problem", "a block is at most twice as large as the result, or as small as blocks get", _useful),
    Rule("one-worker", "the work of one worker is not cut along the rows", cuts_for_several),
    Rule("streaming-needs-size", "non-temporal stores only help results larger than the caches", streams_what_is_large),
)

TILES = ((28, 16), (56, 16), (28, 32), (8, 64), (32, 32), (32, 64), (64, 64), (128, 64), (64, 256), (128, 1024))


def space(problem: WindowProblem) -> Space[WindowProblem]:
    """All schedules of one reduction over windows."""
    knobs = (
        Knob("tile", TILES, "rows and lanes of a block: output rows and columns, or output columns and channels"),
        Knob("rows", (1, 2, 4, 7, 8), "output rows whose sums are held in registers, and share what is loaded"),
        Knob("columns", (1, 2, 4, 7), "output columns likewise, where channels go along vectors"),
        Knob("vectorize", (1, 2, 4), "vectors side by side in a step"),
        Knob(
            "buffering",
            ("direct", "rows"),
            "images are read in place, or, where channels go along vectors, from a ring of rows in scratch memory",
        ),
        Knob("pipeline_depth", (1, 2, 3), "register tiles, or strips of rows, from the fetch to the use, plus one"),
        Knob("nontemporal", (False, True), "results bypass the caches"),
        Knob("parallel", ("outer", "rows"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True, False), "neighbouring maps inside this kernel"),
    )
    return Space(knobs, RULES, problem, default_schedule(problem))


def _fitting(most: int, extent: int) -> int:
    return next(count for count in (4, 2, 1) if count <= min(most, max(extent, 1)))


def default_schedule(problem: WindowProblem) -> Schedule:
    """Register tiles of eight sums or more, which is what hides their latency: found by measuring on Zen 4."""
    schedule = _by_columns(problem) if problem.lanes_axis == "x" else _by_channels(problem)
    even = problem.images >= 4 * problem.workers or problem.images % problem.workers == 0
    # Several rows of columns are written in turn, and end within lines: buffers for stores past the caches leave half
    # empty (Zen 4: 0.95 to 1.0 of the speed). So do those of vectors that are half a line, all of them: on a Zen 3, one
    # busy thread, 12 to 98 MiB, 3 x 3 windows take 2.1 to 2.8 times as long so.
    whole_lines = schedule.integer("vectorize") * problem.vector >= LINE
    streams = problem.lanes_axis == "c" and whole_lines and leaves_caches(problem)
    parallel = "outer" if even or problem.workers == 1 else "rows"
    return schedule.replace(nontemporal=streams, parallel=parallel, fusion=True)


def _by_columns(problem: WindowProblem) -> Schedule:
    wide, steps = problem.target.vector_registers >= 32, max(problem.geometry.stride) > 1
    rows, vectors, most, depth = 4, 2 if wide and problem.lanes > problem.vector else 1, 128, 1
    if wide and problem.taps <= FEW_TAPS and not steps:
        rows, vectors, most = 2, _fitting(4, -(-problem.lanes // problem.vector)), 64
    elif not wide and problem.taps <= FEW_TAPS:
        # The taps' operands fill 16 registers, and what is loaded comes from the first cache again. One busy thread of
        # Zen 3, processor time of one row over that of four: 0.79 to 0.95 (28 x 28 to 112 x 112, in caches and not),
        # with strides 0.55 to 0.86, where the rows that follow are also fetched.
        rows, depth = 1, 3 if steps else 1
    useful = (tile for tile in TILES[::-1] if tile[0] <= most and _useful(Schedule(tile=tile), problem))
    tile = next(useful, TILES[0])
    if tile[1] % (vectors * problem.vector):
        tile = (tile[0], vectors * problem.vector)
    rows = _fitting(rows, problem.result[0])
    return Schedule(tile=tile, rows=rows, columns=1, vectorize=vectors, buffering="direct", pipeline_depth=depth)


def _by_channels(problem: WindowProblem) -> Schedule:
    """In place where nearly all windows lie inside the image, and their taps stay in registers or neighbouring windows
    share little (those that are a step apart); else from a ring of rows.
    """
    height, width, _ = problem.result
    vector, stride = problem.vector, problem.geometry.stride
    wide, steps = problem.target.vector_registers >= 32, max(stride) > 1
    vectors = 2 if wide and not steps and problem.lanes > vector else 1
    if vectors == 2:
        rows, columns = 2, 2
    else:
        rows, columns = 1 if steps else 4 if wide else 2, 4
    in_place = Schedule(
        tile=_tile_of(((128, 1024), (64, 256), (64, 64), (32, 32)), problem),
        rows=_fitting(rows, height),
        columns=_fitting(columns, width),
        vectorize=vectors,
        buffering="direct",
        pipeline_depth=2 if steps or vectors == 2 else 3,
    )
    if all(stride[side] > problem.geometry.reach(side) for side in (0, 1)):  # nothing is shared
        vectors = _fitting(4, -(-problem.lanes // vector))
        return in_place.replace(rows=1, columns=1, vectorize=vectors, pipeline_depth=1)
    held = (rows * columns + problem.taps * problem.free) * vectors + 2
    if inside_share(in_place, problem) >= INSIDE and (steps or held <= problem.target.vector_registers):
        return in_place
    ring = in_place.replace(rows=_fitting(2, height), buffering="rows", pipeline_depth=2)
    if vectors == 2:
        ring = ring.replace(tile=(28, 2 * vector), columns=1)
    elif vector < LINE:
        # Both halves of a line are used while it is near. One busy thread of Zen 3, torch's processor time over ours
        # with blocks as wide as a vector, and as a line: 3 x 3 of 112 x 112 0.81 and 1.09, of 28 x 28 1.56 and 2.08;
        # 7 x 7 1.63 and 2.19, 1.93 and 2.31.
        ring = ring.replace(tile=(56 if problem.rows > 28 else 28, LINE))
    else:
        ring = ring.replace(tile=_tile_of(((56, vector), (28, vector)), problem))
    return ring if _ring_fits(ring, problem) else in_place


def _tile_of(tiles: tuple[tuple[int, int], ...], problem: WindowProblem) -> tuple[int, int]:
    """The largest of these blocks that suits the problem."""
    return next((tile for tile in tiles if _useful(Schedule(tile=tile), problem)), tiles[-1])


def inside_share(schedule: Knobs, problem: WindowProblem) -> Number:
    """The share of register tiles of rows and columns whose windows lie inside the image."""
    share: Number = 1.0
    for side, name in enumerate(("rows", "columns")):
        step, geometry, extent = schedule.integer(name), problem.geometry, max(problem.result[side], 1)
        before = -(-geometry.padding[side] // geometry.stride[side])
        edges = divided(before, step) * 2 * step if before else extent % step
        share = share * larger(0.0, 1 - edges / extent)
    return share
