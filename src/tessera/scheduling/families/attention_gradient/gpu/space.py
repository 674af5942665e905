"""The knobs and default schedule of the gradient of attention on GPUs, for each of its two walks; rules: `rules.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tessera.scheduling.families.attention.gpu.choice import WalkModel
from tessera.scheduling.families.attention.space import padded_head
from tessera.scheduling.families.attention_gradient.gpu.rules import RULES, GpuGradientProblem
from tessera.scheduling.families.attention_gradient.gpu.walk_cost import gradient_walk
from tessera.scheduling.language.knobs import Knob, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_resources import size_step

STARTS: tuple[tuple[tuple[int, int], int, int], ...] = (
    ((64, 32), 4, 3),
    ((64, 64), 4, 3),
    ((64, 64), 4, 2),
    ((128, 128), 8, 2),
    ((128, 64), 8, 3),
    ((128, 64), 8, 2),
    ((128, 32), 8, 3),
    ((128, 32), 8, 2),
    ((64, 64), 8, 2),
    ((64, 32), 4, 2),
    ((64, 32), 8, 2),
    ((64, 16), 4, 2),
    ((32, 32), 2, 2),
    ((32, 32), 4, 2),
    ((32, 32), 4, 1),
    ((16, 32), 1, 2),
    ((16, 16), 4, 1),
    ((16, 16), 8, 1),
)
"""((held, walked), warps, stages), the best first: of twenty on an H100 (bf16, causal, 4096 tokens) the first is within
2 % of the fastest for both walks together, with heads of 64 and of 128; the fourth took up to 1.3 times as long.
"""
_SIDES = (16, 32, 64, 128, 256)


def space(problem: GpuGradientProblem) -> Space[GpuGradientProblem]:
    """All schedules of one walk."""
    default = default_schedule(problem)
    knobs = (
        Knob("tile", tuple((q, k) for q in _SIDES for k in _SIDES), "queries and keys of a block of scores"),
        Knob("head", (default["head"],), "what tiles hold of a query and of a value, a power of two"),
        Knob("exact", (default["exact"],), "heads are as large as that, so that nothing is masked along them"),
        Knob("warps", (1, 2, 4, 8, 16), "warps of a block"),
        Knob("pipeline_depth", (1, 2, 3, 4), "stages: tiles of the walked side that are on their way at a time"),
    )
    return Space(knobs, RULES, problem, default)


def default_schedule(problem: GpuGradientProblem) -> Schedule:
    """The first of the known good starts that the model thinks about as fast as the fastest. Problems of about the same
    size share a choice. The smallest start where none is legal.
    """
    shared, group = size_step(problem.shared), size_step(problem.group)
    queries, keys = size_step(problem.queries), size_step(problem.keys)
    return MODEL.default(problem, replace(problem, shared=shared, group=group, queries=queries, keys=keys), RULES)


def _made(problem: GpuGradientProblem, sides: tuple[int, int], warps: int, stages: int) -> Schedule:
    """A schedule by what is held and what is walked."""
    head = (padded_head(problem.head), padded_head(problem.value_head))
    return Schedule(
        tile=(sides[1], sides[0]) if problem.by_keys else sides,
        head=head,
        exact=head == (problem.head, problem.value_head),
        warps=warps,
        pipeline_depth=stages,
    )


def starts(problem: GpuGradientProblem) -> Sequence[Schedule]:
    """The legal starts; the smallest where none is legal."""
    made = [_made(problem, *start) for start in STARTS]
    return [start for start in made if _is_legal(start, problem)] or made[-1:]


def more(problem: GpuGradientProblem) -> Iterator[Schedule]:
    """Other legal schedules that are worth a look."""
    for held, walked, warps, stages in product(_SIDES, _SIDES, (1, 2, 4, 8), (1, 2, 3, 4)):
        found = _made(problem, (held, walked), warps, stages)
        if _is_legal(found, problem):
            yield found


def _is_legal(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    return all(rule.holds(schedule, problem) for rule in RULES)


MODEL = WalkModel(GpuGradientProblem, gradient_walk, starts, more)
