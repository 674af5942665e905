"""The knobs, rules and default schedule of kernels that reduce over a sliding window, on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tessera.scheduling.expression import post_order
from tessera.scheduling.knobs import Knob, Rule, Space
from tessera.scheduling.mapreduce_space import STREAMED_BYTES, cache_bytes
from tessera.scheduling.schedule import KnobValue, Schedule
from tessera.scheduling.spec import Geometry, WindowSpec
from tessera.target import Target


@dataclass(frozen=True)
class WindowProblem:
    """What legality and cost depend on.

    `images` is the number of planes (lanes "x": images times channels) or of images (lanes "c"), `result` the extents
    of the result's rows, columns and channels (1 for planes); `image_bytes`, `bytes_in`, `bytes_out` the compulsory
    traffic of the image, of all operands and of the results; `operations` the vector instructions per tap and vector,
    `after` those per vector of the result; `free` the operands that vary from tap to tap.
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
        target=target,
        workers=workers,
    )


def _registers(schedule: Schedule, problem: WindowProblem) -> bool:
    sums = schedule.integer("rows") * schedule.integer("vectorize")
    return sums + schedule.integer("vectorize") * 2 + 2 <= problem.target.vector_registers


def _lanes(schedule: Schedule, problem: WindowProblem) -> bool:
    width = schedule.integer("vectorize") * problem.vector
    return schedule.integers("tile")[1] % width == 0 and (width == problem.vector or width < 2 * problem.lanes)


def _rows(schedule: Schedule, problem: WindowProblem) -> bool:
    rows = schedule.integer("rows")
    return schedule.integers("tile")[0] >= rows and (rows == 1 or rows <= problem.rows)


def _useful(schedule: Schedule, problem: WindowProblem) -> bool:
    rows, lanes = schedule.integers("tile")
    return rows <= max(32, 2 * problem.rows) and lanes <= max(32, 2 * problem.vector, 2 * problem.lanes)


def _streams_out(schedule: Schedule, problem: WindowProblem) -> bool:
    return not schedule["nontemporal"] or problem.bytes_out >= STREAMED_BYTES


def _something_to_cut(schedule: Schedule, problem: WindowProblem) -> bool:
    return schedule["parallel"] == "outer" or problem.workers > 1


RULES: tuple[Rule[WindowProblem], ...] = (
    Rule("vector-registers", "the sums of a register tile and the vectors they are made of must not spill", _registers),
    Rule("whole-vectors", "a block holds whole steps of vectors, of which most lanes are used", _lanes),
    Rule("rows-within-block", "a block, and the result, holds a register tile's rows", _rows),
    Rule("tile-within-problem", "a block is at most twice as large as the result, or as small as blocks get", _useful),
    Rule("one-worker", "the work of one worker is not cut along the rows", _something_to_cut),
    Rule("streaming-needs-size", "non-temporal stores only help results larger than the caches", _streams_out),
)

TILES = ((8, 64), (32, 32), (32, 64), (64, 64), (128, 64), (64, 256), (128, 1024))


def space(problem: WindowProblem) -> Space[WindowProblem]:
    """All schedules of one reduction over windows."""
    knobs = (
        Knob("tile", TILES, "rows and lanes of a block: output rows and columns, or output columns and channels"),
        Knob("rows", (1, 2, 4, 6, 7, 8), "rows of sums that are held in registers, and share what is loaded"),
        Knob("vectorize", (1, 2, 4), "vectors side by side in a step"),
        Knob("pipeline_depth", (1, 2, 3), "steps of rows between the fetch of an input row and its use, plus one"),
        Knob("nontemporal", (False, True), "results bypass the caches"),
        Knob("parallel", ("outer", "rows"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True, False), "neighbouring maps inside this kernel"),
    )
    return Space(knobs, RULES, problem, default_schedule(problem))


def _register_tile(problem: WindowProblem) -> tuple[int, int]:
    """Rows and vectors of a register tile. Larger windows of channels read more vectors of a pixel at a time: their
    operands come from the second cache. Rows of 7 fit the images of most networks: 224 and its halves.
    """
    wide, vectors = problem.target.vector_registers >= 32, -(-problem.lanes // problem.vector)
    if problem.lanes_axis == "x":
        most, vectorize = 4, 2 if wide and vectors > 1 else 1
    elif wide and problem.taps > 9 and vectors > 3:
        most, vectorize = (8, 2) if problem.taps > 25 else (4, 4)
    else:
        most, vectorize = 8 if wide else 4, 1
    rows = next(count for count in (8, 4, 2, 1) if count <= min(most, max(problem.rows, 1)))
    return (7 if rows == 8 and problem.rows % 7 == 0 else rows), vectorize


def default_schedule(problem: WindowProblem) -> Schedule:
    """Register tiles of eight sums, which is what hides their latency: found by measuring on Zen 4."""
    rows, vectorize = _register_tile(problem)
    width = vectorize * problem.vector
    tile = next((tile for tile in TILES[::-1] if _useful(Schedule(tile=tile), problem)), TILES[1])
    if tile[1] % width:
        tile = (tile[0], width)
    even = problem.images >= 4 * problem.workers or problem.images % problem.workers == 0
    return Schedule(
        tile=tile,
        rows=rows,
        vectorize=vectorize,
        pipeline_depth=1,
        nontemporal=problem.bytes_out >= cache_bytes(problem.target),
        parallel="outer" if even or problem.workers == 1 else "rows",
        fusion=True,
    )


def sum_order(schedule: Schedule, problem: WindowProblem) -> tuple[KnobValue, ...]:
    """What decides the bits of a result: taps are added up one after the other under any schedule."""
    return (schedule["fusion"],)
