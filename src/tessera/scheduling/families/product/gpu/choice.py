"""The schedule of a matrix product on a GPU that nobody has tuned: the model's choice among likely starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tessera.scheduling.families.product.gpu.estimate import ContractionEstimate, estimate_product
from tessera.scheduling.families.product.gpu.problem import DEFAULTS, GpuContractionProblem, uses_descriptor
from tessera.scheduling.families.product.gpu.rules import RULES
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.gpu_machine import GpuMachine, gpu_machine
from tessera.scheduling.model.gpu_resources import size_step
from tessera.target import Target

STARTS: tuple[tuple[tuple[int, int, int], int, int], ...] = (
    ((128, 256, 64), 4, 8),
    ((256, 128, 64), 4, 8),
    ((128, 256, 64), 3, 8),
    ((128, 128, 64), 4, 8),
    ((128, 128, 128), 3, 8),
    ((128, 128, 64), 3, 8),
    ((128, 256, 128), 3, 8),
    ((128, 128, 128), 4, 8),
    ((128, 128, 64), 3, 4),
    ((128, 128, 64), 2, 8),
    ((128, 128, 64), 2, 4),
    ((128, 128, 32), 3, 8),
    ((128, 256, 32), 3, 8),
    ((128, 128, 32), 4, 4),
    ((64, 256, 64), 3, 4),
    ((128, 64, 64), 4, 4),
    ((64, 128, 64), 4, 4),
    ((64, 128, 128), 4, 4),
    ((64, 128, 128), 3, 4),
    ((128, 64, 128), 4, 4),
    ((64, 128, 32), 3, 4),
    ((64, 64, 128), 5, 4),
    ((64, 64, 128), 3, 4),
    ((64, 64, 64), 5, 4),
    ((64, 64, 64), 4, 4),
    ((64, 64, 32), 4, 4),
    ((64, 64, 32), 2, 4),
    ((64, 32, 64), 5, 4),
    ((32, 128, 64), 4, 4),
    ((32, 64, 64), 4, 4),
    ((32, 64, 32), 2, 4),
    ((64, 16, 128), 4, 4),
    ((16, 128, 64), 4, 4),
    ((16, 64, 128), 4, 4),
    ((16, 32, 128), 5, 4),
    ((32, 32, 32), 3, 4),
    ((32, 32, 16), 2, 4),
    ((16, 32, 16), 2, 1),
    ((16, 32, 32), 1, 1),
    ((16, 16, 64), 4, 1),
    ((16, 16, 16), 1, 1),
    ((16, 16, 32), 1, 1),
)
"""(tile, stages, warps): the first five are known to be good for bf16 on Hopper, the others serve 8-bit operands,
smaller products, few rows or columns, and GPUs with less shared memory."""
_COPIED: Mapping[str, KnobValue] = {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor"}
WAYS: tuple[Mapping[str, KnobValue], ...] = (
    {**_COPIED, "out_indexing": "host_descriptor", "grid": "fused", "epilogue_parts": 2},
    _COPIED,
)
"""How else than by pointers operands are moved: by the copy engine, with the next tile's loads begun before this one is
stored; by the copy engine alone. Of ways that promise as much the first is taken: on an H100 the first was the fastest
for every bf16 product of 2048 cubed and more."""
_LIKELY = 8
"""How many starts are looked at in these ways."""

PROMISED = 16
"""Extents and strides that this divides are promised to every kernel by its launches."""

SAME = 1.02
"""Estimates that differ by less say nothing: the start that stands first is taken."""

SPLITS = (1, 2, 4, 8)
"""Into how many parts a default schedule may cut K."""
_WORTH_A_SPLIT = 1.1
"""How much longer the best start without parts must take: parts need memory, and another kernel to add them up."""


def complete(schedule: Schedule) -> Schedule:
    """A schedule with every knob: those that it leaves out have their defaults."""
    return Schedule({**schedule, **{name: value for name, value in DEFAULTS.items() if name not in schedule}})


def default_schedule(problem: GpuContractionProblem) -> Schedule:
    """The start that the model thinks fastest. Problems of about the same size share a choice."""
    m, n, k, batch = (size_step(extent) for extent in (problem.m, problem.n, problem.k, problem.batch))
    chosen = _default(replace(problem, m=m, n=n, k=k, batch=batch))
    if _is_legal(chosen, problem):
        return with_vectors(chosen, problem)
    return chosen_start(problem, _rates(problem.target)).schedule


def with_vectors(schedule: Schedule, problem: GpuContractionProblem) -> Schedule:
    """A schedule whose kernel relies on the widest accesses that the operands permit, where its launches do not promise
    them anyway: those promise extents that 16 divides. Loads of fewer than 4 bytes cannot be asynchronous copies, and
    take registers for every element.
    """
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    layouts = {"a": problem.a, "b": problem.b, "out": problem.out}
    pointed = [layout.unit_axis for name, layout in layouts.items() if not uses_descriptor(schedule, name)]
    if all(extents[axis] % PROMISED == 0 for axis in pointed if axis in extents):
        return schedule
    wider = (schedule.replace(vector_bytes=width) for width in (16, 8, 4))
    return next((found for found in wider if _is_legal(found, problem)), schedule)


def best_starts(
    problem: GpuContractionProblem, count: int, splits: Sequence[int] = (1,), rates: GpuMachine | None = None
) -> list[ContractionEstimate]:
    """The `count` legal starts that the model thinks fastest, the best first, with K in any of `splits` parts."""
    return sorted(_estimates(problem, splits, rates or _rates(problem.target)), key=lambda found: found.seconds)[:count]


@lru_cache(maxsize=4096)
def _default(problem: GpuContractionProblem) -> Schedule:
    return chosen_start(problem, _rates(problem.target)).schedule


def chosen_start(problem: GpuContractionProblem, rates: GpuMachine) -> ContractionEstimate:
    """The start that a product has by default, with K in parts where that pays."""
    found = _estimates(problem, SPLITS, rates)
    whole = [each for each in found if each.work.split_k == 1]
    least, least_whole = (min(each.seconds for each in some) for some in (found, whole))
    if least_whole <= _WORTH_A_SPLIT * least:
        found, least = whole, least_whole
    return next(each for each in found if each.seconds <= SAME * least)


def _estimates(problem: GpuContractionProblem, splits: Sequence[int], rates: GpuMachine) -> list[ContractionEstimate]:
    """The legal starts; before them those that are likely in the other ways to move operands, way by way."""
    plain = [estimate_product(problem, schedule, rates) for schedule in _plain(problem, tuple(splits))]
    if not problem.reads_shared:
        return plain
    fastest = sorted(found.seconds for found in plain)[:_LIKELY]
    likely = [found for found in plain if found.seconds <= fastest[-1]][:_LIKELY]  # in the order of the starts
    moved = (found.schedule.replace(vector_bytes=0, **way) for way in WAYS for found in likely)
    return [*(estimate_product(problem, schedule, rates) for schedule in _legal(moved, problem)), *plain]


@lru_cache(maxsize=256)
def _plain(problem: GpuContractionProblem, splits: tuple[int, ...]) -> tuple[Schedule, ...]:
    """The legal starts by pointers, which no constant of the model decides."""
    parts = (1, 2, 4) if problem.epilogue_words else (1,)
    starts = (
        Schedule(tile=tile, warps=warps, pipeline_depth=stages, group=8, split_k=split, epilogue_parts=part)
        for (tile, stages, warps), split, part in itertools.product(STARTS, splits, parts)
    )
    return tuple(_legal(map(complete, starts), problem))


def _legal(schedules: Iterable[Schedule], problem: GpuContractionProblem) -> Iterator[Schedule]:
    return (with_vectors(schedule, problem) for schedule in schedules if _is_legal(schedule, problem))


def _is_legal(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return all(rule.holds(schedule, problem) for rule in RULES)


@lru_cache(maxsize=8)
def _rates(target: Target) -> GpuMachine:
    return gpu_machine(target)
