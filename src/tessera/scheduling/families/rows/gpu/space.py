"""The knobs, rules and default schedule of maps and reductions on GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

from tessera.scheduling.families.rows.gpu.cost import vector_bytes
from tessera.scheduling.families.rows.gpu.estimate import RowsEstimate, estimate_rows
from tessera.scheduling.families.rows.gpu.problem import (
    GpuRowsProblem,
    of_its_size,
    predicted_resources,
    tile_registers,
)
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine, gpu_machine
from tessera.target import Target

WIDTHS = tuple(1 << power for power in range(5, 17))
ROWS = (1, 2, 4, 8, 16, 32)
WARPS = (1, 2, 4, 8, 16, 32)
TILE_REGISTERS = 96
"""Of a thread; tiles of 128 were seen to spill, as what is made of their elements takes registers too."""
MASKS = 16
"""Of a thread of CDNA 3: more were seen to spill scalar registers, where nothing is promised about the extents."""
_SECTOR = 32
"""Bytes that memory gives at a time."""


def row_width(lanes: int) -> int:
    """The width of a tile that holds a row of `lanes` elements."""
    return max(1 << max(lanes - 1, 0).bit_length(), WIDTHS[0])


def _threads(schedule: Schedule, problem: GpuRowsProblem) -> int:
    return schedule.integer("warps") * problem.limits.warp_size


def _block(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    return _threads(schedule, problem) <= 1024


def _holds_row(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    return not schedule["whole_row"] or (problem.by_rows and problem.lanes <= schedule.integers("tile")[1])


def _registers(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    taken = predicted_resources(problem, schedule).registers * _threads(schedule, problem)
    return tile_registers(problem, schedule) <= TILE_REGISTERS and 4 * taken < 3 * problem.limits.registers


def _masks(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    rows, width = schedule.integers("tile")
    most = MASKS if schedule["whole_row"] or not problem.by_rows else MASKS // 2
    return not problem.target.arch.startswith("gfx") or rows * width <= most * _threads(schedule, problem)


def _work(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    rows, width = schedule.integers("tile")
    return rows * width >= _threads(schedule, problem)


def _rows(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    rows = schedule.integers("tile")[0]
    if rows == 1 or problem.walks:
        return True
    return problem.rows > 0 and (bool(schedule["whole_row"]) or not problem.by_rows)


def _coalesced(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    width = schedule.integers("tile")[1]
    return width * problem.itemsize >= _SECTOR or width >= problem.lanes


def _vectors(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    # Where rows are shorter than a warp's 16-byte loads there is nothing to widen.
    rows, width = schedule.integers("tile")
    widest = max(problem.itemsize, min(16, problem.alignment))
    enough = rows * width * problem.itemsize >= widest * problem.limits.warp_size
    return vector_bytes(problem, schedule) >= widest or not enough or problem.elements < 2 * rows * width


def _within(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    rows, width = schedule.integers("tile")
    most = problem.reduced if problem.walks else problem.rows
    return width <= max(row_width(problem.lanes), problem.limits.warp_size) and rows <= row_width(most)


def _streams(schedule: Schedule, problem: GpuRowsProblem) -> bool:
    return not schedule["nontemporal"] or problem.bytes_out > _l2_bytes(problem.target)


RULES: tuple[Rule[GpuRowsProblem], ...] = (
    Rule("threads-per-block", "a block has at most 1024 threads", _block),
    Rule("row-in-tile", "rows that are held lie along the reduced axis, and fit the tile", _holds_row),
    Rule(
        "tile-in-registers",
        "a tile takes at most 96 registers of a thread, and a block three quarters of those there are",
        _registers,
    ),
    Rule(
        "masks-in-registers",
        "on AMD a thread has 16 masked elements at most, 8 of a walked row: masks are scalar registers",
        _masks,
    ),
    Rule("work-per-thread", "each thread has at least one element of the tile", _work),
    Rule("rows-of-a-tile", "a tile has several rows of an outer axis only where it holds them whole", _rows),
    Rule("coalesced-access", "a tile's rows are at least a 32-byte sector of memory wide, or as the data", _coalesced),
    Rule("vector-width", "a thread has enough elements for loads as wide as the alignment allows", _vectors),
    Rule("tile-within-problem", "a tile is at most as large as the problem, rounded to a power of two", _within),
    Rule("streaming-needs-size", "results bypass L2 only where they are larger than it", _streams),
)


def knobs() -> tuple[Knob, ...]:
    """The knobs of a map or reduction on a GPU."""
    tiles = tuple((rows, width) for rows in ROWS for width in WIDTHS)
    return (
        Knob("tile", tiles, "rows (steps of a reduced axis outside the lanes) and lanes of a block's tile"),
        Knob("whole_row", (False, True), "a block holds its rows in registers, instead of walking along them"),
        Knob("warps", WARPS, "warps of a block; with the tile it decides how many bytes a thread loads at once"),
        Knob("nontemporal", (False, True), "results bypass the caches, which the next kernel's operands need"),
    )


def default_schedule(problem: GpuRowsProblem) -> Schedule:
    """The schedule that the model thinks fastest among those that could be good; the first of these where it sees no
    difference: fewer rows, and blocks of 128 or 256 threads. Problems of about the same size share a choice.
    """
    chosen = _default(of_its_size(problem))
    # What is right for the class's largest may be illegal for one that is just above a power of two.
    return chosen if all(rule.holds(chosen, problem) for rule in RULES) else _modelled(problem)


@lru_cache(maxsize=4096)
def _default(problem: GpuRowsProblem) -> Schedule:
    return _modelled(problem)


def _modelled(problem: GpuRowsProblem) -> Schedule:
    return chosen_start(problem, _rates(problem.target)).schedule


def chosen_start(problem: GpuRowsProblem, rates: GpuMachine) -> RowsEstimate:
    """What a map or reduction has by default."""
    legal = [each for each in _starts(problem) if all(rule.holds(each, problem) for rule in RULES)]
    timed = [estimate_rows(problem, each, rates) for each in legal or [_narrowest(problem)]]
    least = min(found.seconds for found in timed)
    return next(found for found in timed if found.seconds <= 1.01 * least)


def best_starts(problem: GpuRowsProblem, count: int, rates: GpuMachine | None = None) -> list[RowsEstimate]:
    """The `count` legal starts that the model thinks fastest, the best first."""
    known = rates or _rates(problem.target)
    legal = (each for each in _starts(problem) if all(rule.holds(each, problem) for rule in RULES))
    return sorted((estimate_rows(problem, each, known) for each in legal), key=lambda found: found.seconds)[:count]


def space(problem: GpuRowsProblem) -> Space[GpuRowsProblem]:
    """All schedules of one map or reduction."""
    return Space(knobs(), RULES, problem, default_schedule(problem))


@lru_cache(maxsize=8)
def _rates(target: Target) -> GpuMachine:
    return gpu_machine(target)


def _l2_bytes(target: Target) -> int:
    level = target.level("L2")
    return level.size_bytes * target.cores // max(level.shared_by, 1) if level is not None else 0


def _starts(problem: GpuRowsProblem) -> Iterator[Schedule]:
    """What is worth a look, the most usual first: rows held or walked, a few widths for what is no row kernel."""
    streams = problem.bytes_out > 2 * _l2_bytes(problem.target)
    whole = row_width(problem.lanes)
    warps = (4, 8, 2, 1, 16, 32)
    if problem.by_rows:
        for rows, count in itertools.product(ROWS[:5], warps):
            yield Schedule(tile=(rows, whole), whole_row=True, warps=count, nontemporal=streams)
        for width, count in itertools.product((1024, 2048, 4096, 8192), (4, 8, 16, 2)):
            yield Schedule(tile=(1, width), whole_row=False, warps=count, nontemporal=streams)
        return
    widths = (
        [width for width in WIDTHS[:8] if width <= whole] if problem.walks else [min(w, whole) for w in WIDTHS[3:8]]
    )
    heights = ROWS if problem.walks or problem.rows > 1 else ROWS[:1]
    for width, rows, count in itertools.product(dict.fromkeys(widths), heights, warps[:4]):
        yield Schedule(tile=(rows, width), whole_row=False, warps=count, nontemporal=streams)


def _narrowest(problem: GpuRowsProblem) -> Schedule:
    """What is always legal: one row of a tile that is as wide as one warp, or as the data."""
    lanes = problem.limits.warp_size
    width = max(min(row_width(problem.lanes), lanes * 16 // problem.itemsize), lanes)
    return Schedule(tile=(1, width), whole_row=False, warps=1, nontemporal=False)
