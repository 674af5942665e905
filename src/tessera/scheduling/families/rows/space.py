"""The knobs, rules and default schedule of maps and reductions on CPUs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from tessera.scheduling.families.common_rules import (
    cuts_for_several,
    leaves_caches,
    streamed_bytes,
    streams_what_is_large,
)
from tessera.scheduling.language.columns import Knobs, Number, divided, no
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target

STEP_INSTRUCTIONS: Final = 400
"""Vector instructions of a step that is walked at once by default: longer ones are work enough for a processor as they
are, and compilers take more than proportional time for them.
"""


@dataclass(frozen=True)
class MapReduceProblem:
    """What legality and cost depend on.

    `outer` is the number of rows (or of lane blocks' repetitions), `reduced` the extent of the reduced axis (1 for a
    map), `lanes` the extent of the lane axis; `rows` that of the axis along which an operand of a map is contiguous
    instead of along the lanes (`transposed_axis`), 0 without one; `bytes_in`, `bytes_out` the compulsory traffic;
    `passes` the walks along the reduced axis; `dear` the number of values worth keeping, `again` the instructions that
    making those anew takes; `flops` per element.
    """

    outer: int
    reduced: int
    lanes: int
    by_rows: bool
    bytes_in: int
    bytes_out: int
    passes: int
    dear: int
    again: int
    live: int
    flops: int
    target: Target
    workers: int
    rows: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.outer, self.reduced, self.lanes, self.rows


SCRATCH_COLUMNS = (0, 1024, 4096, 16384)


def _one_row(schedule: Knobs, problem: MapReduceProblem) -> Number:
    return (schedule.integers("tile")[0] == 1) | bool(problem.rows)


def _fits_registers(schedule: Knobs, problem: MapReduceProblem) -> Number:
    rows, columns = schedule.integers("tile")
    vectors = rows * divided(columns, problem.target.vector_bits // 32)
    return vectors * problem.live <= 2 * problem.target.vector_registers


def _row_fits(schedule: Knobs, problem: MapReduceProblem) -> Number:
    lanes = problem.target.vector_bits // 32
    fits = divided(problem.lanes, lanes) * lanes <= schedule.integer("keep")
    return no(schedule.flag("keep")) | (fits & (problem.dear > 0 and problem.by_rows))


def _walks_rows_again(schedule: Knobs, problem: MapReduceProblem) -> Number:
    return no(schedule.flag("ahead")) | (problem.by_rows and problem.passes > 1)


RULES: tuple[Rule[MapReduceProblem], ...] = batched(
    Rule("one-row", "a step walks one row, but for maps of transposed operands", _one_row),
    Rule("vector-registers", "the vectors of one step must not spill much", _fits_registers),
    Rule("scratch-holds-row", "kept values need a scratch row at least as long as the data's", _row_fits),
    Rule("ahead-needs-passes", "the next row is fetched in a second pass along this one", _walks_rows_again),
    Rule("one-worker", "the work of one worker is not cut along the lanes", cuts_for_several),
    Rule("streaming-needs-size", "non-temporal stores only help results larger than the caches", streams_what_is_large),
)


def space(problem: MapReduceProblem) -> Space[MapReduceProblem]:
    """All schedules of one map or reduction."""
    lanes = problem.target.vector_bits // 32
    knobs = (
        Knob("tile", _tiles(lanes, bool(problem.rows)), "rows and columns of one step"),
        Knob(
            "keep",
            SCRATCH_COLUMNS,
            "columns of scratch memory for dear values that a later pass needs; 0 computes them again",
        ),
        Knob("ahead", (False, True), "the second pass along a row fetches the next row"),
        Knob("nontemporal", (False, True), "results bypass the caches"),
        Knob("parallel", ("outer", "lanes"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True, False), "neighbouring maps inside this kernel"),
    )
    return Space(knobs, RULES, problem, default_schedule(problem))


def _tiles(lanes: int, transposed: bool) -> tuple[tuple[int, int], ...]:
    rows = [(1, lanes * unroll) for unroll in (1, 2, 4, 8)]
    sides = [side for side in (4, 8, 16, 32) if side <= 2 * lanes]
    return (*rows, *itertools.product(sides, sides)) if transposed else tuple(rows)


def default_schedule(problem: MapReduceProblem) -> Schedule:
    """A schedule that is good on every machine seen so far."""
    lanes = problem.target.vector_bits // 32
    few_rows = not problem.by_rows and problem.outer < problem.workers and problem.workers > 1
    parallel = "lanes" if few_rows else "outer"
    if problem.rows:
        tile = _transposed_tile(problem, lanes)
        streams = leaves_caches(problem)
        return Schedule(tile=tile, keep=0, ahead=False, nontemporal=streams, parallel=parallel, fusion=True)
    unroll = 2 if _is_norm(problem) else 4
    while unroll > 1 and (
        lanes * unroll > max(problem.lanes, lanes)
        or unroll * problem.live > 2 * problem.target.vector_registers
        or unroll * problem.flops > STEP_INSTRUCTIONS
    ):
        unroll //= 2
    rounded = -(-problem.lanes // lanes) * lanes
    keep = (
        next((columns for columns in SCRATCH_COLUMNS if columns >= rounded), 0)
        if problem.dear and problem.by_rows
        else 0
    )
    ahead = _is_norm(problem) or (
        bool(keep) and problem.passes > 1 and problem.bytes_in >= streamed_bytes(problem.target)
    )
    return Schedule(
        tile=(1, lanes * unroll),
        keep=keep,
        ahead=ahead,
        nontemporal=leaves_caches(problem),
        parallel=parallel,
        fusion=True,
    )


def _is_norm(problem: MapReduceProblem) -> bool:
    """Rows that are walked again, with nothing worth keeping: short steps, and the next row fetched in the last pass
    (layer norm on Zen 4, 256 x 256 to 4096 x 4096: 1.07 to 1.27 of the speed of steps of four vectors without).
    """
    return problem.by_rows and problem.passes > 1 and not problem.dear


def _transposed_tile(problem: MapReduceProblem, lanes: int) -> tuple[int, int]:
    """A square of registers, or less where the matrix is narrow or there is much to keep in them."""
    rows, columns = lanes, lanes
    while columns > 4 and columns >= 2 * problem.lanes:
        columns //= 2
    while rows > 4 and (rows >= 2 * problem.rows or rows * problem.live > 2 * problem.target.vector_registers):
        rows //= 2
    return rows, columns
