"""The knobs and default schedule of attention on GPUs; its rules are in `rules.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from tessera.scheduling.families.attention.gpu.choice import WalkModel
from tessera.scheduling.families.attention.gpu.rules import RULES
from tessera.scheduling.families.attention.gpu.walk import attention_walk, blocks
from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.families.attention.space import AttentionProblem, padded_head
from tessera.scheduling.language.knobs import Knob, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_resources import size_step

P = TypeVar("P", bound=AttentionProblem)

TILES = tuple((bm, bn) for bm in (16, 32, 64, 128, 256) for bn in (16, 32, 64, 128, 256))
"""(queries, keys) of a block and a step."""
PARTS_OF_KEYS = (1, 2, 4, 8, 16, 32, 64)
_PAYS = 256
"""Keys of a part by default."""
_LEAST_PARTS = 4
_FEW = 32
"""Queries that are one block, whose products take less time than their keys take to arrive."""

STARTS: tuple[tuple[tuple[int, int], int, int], ...] = (
    ((128, 128), 8, 3),
    ((128, 128), 8, 2),
    ((128, 64), 8, 3),
    ((128, 64), 8, 2),
    ((128, 64), 4, 2),
    ((128, 32), 8, 3),
    ((128, 32), 8, 2),
    ((128, 32), 4, 2),
    ((128, 16), 8, 2),
    ((64, 64), 4, 2),
    ((64, 32), 8, 2),
    ((64, 32), 4, 2),
    ((64, 16), 4, 2),
    ((32, 64), 4, 4),
    ((32, 64), 4, 3),
    ((32, 32), 4, 4),
    ((32, 16), 4, 4),
    ((32, 32), 2, 2),
    ((32, 32), 4, 2),
    ((16, 16), 1, 4),
    ((16, 32), 1, 2),
    ((16, 16), 1, 1),
    ((16, 16), 4, 1),
    ((16, 16), 8, 1),
)
"""((queries, keys), warps, stages), the best first. Those of 32 queries and three or four stages are for decoding: they
are as the model ranks them, and not measured yet."""


def space(problem: AttentionProblem) -> Space[AttentionProblem]:
    """All schedules of one attention."""
    default = default_schedule(problem)
    knobs = (
        Knob("tile", TILES, "queries of a block, and keys of one step"),
        Knob("head", (default["head"],), "what tiles hold of a query and of a value, a power of two"),
        Knob("exact", (default["exact"],), "heads are as large as that, so that nothing is masked along them"),
        Knob("warps", (1, 2, 4, 8, 16), "warps of a block"),
        Knob("pipeline_depth", (1, 2, 3, 4), "stages: tiles of keys and values that are on their way at a time"),
        Knob(PARTS, PARTS_OF_KEYS, "parts of the keys, which blocks of their own walk and a second kernel joins"),
    )
    return Space(knobs, RULES, problem, default)


def default_schedule(problem: AttentionProblem) -> Schedule:
    """The first of the known good starts that the model thinks about as fast as the fastest, with the keys in as many
    parts as pay. Problems of about the same size share a choice. The smallest start where none is legal.
    """
    return MODEL.default(problem, about_as_large(problem), RULES)


def about_as_large(problem: P) -> P:
    """The problem that stands for those of about the size of one."""
    heads, queries, keys = (size_step(each) for each in (math.prod(problem.batch), problem.queries, problem.keys))
    return replace(problem, batch=(heads,), queries=queries, keys=keys, workers=1)


def starts(problem: AttentionProblem) -> Sequence[Schedule]:
    """The legal starts, each with the keys whole and in parts where that may pay; the smallest where none is legal."""
    head = (padded_head(problem.head), padded_head(problem.value_head))
    exact = head == (problem.head, problem.value_head)
    made = [
        Schedule(tile=tile, head=head, exact=exact, warps=warps, pipeline_depth=stages, parts=1)
        for tile, warps, stages in STARTS
    ]
    legal = [start for start in made if _is_legal(start, problem)] or made[-1:]
    parts = (each for start in legal for each in in_parts(start, problem) if _is_legal(each, problem))
    return sorted((*legal, *parts), key=lambda each: legal.index(each.replace(**{PARTS: 1})))


def in_parts(schedule: Schedule, problem: AttentionProblem) -> list[Schedule]:
    """A schedule with the keys in parts, where its programs leave multiprocessors idle, or few queries leave them
    waiting for keys. From four on: a second kernel that joins takes about as long as a thousand keys (predicted).
    """
    programs, cores = blocks(schedule, problem), problem.target.cores
    wanted = cores if problem.queries > _FEW else 2 * cores
    counts = (parts for parts in PARTS_OF_KEYS if parts >= _LEAST_PARTS and parts * _PAYS <= problem.keys)
    return [schedule.replace(**{PARTS: parts}) for parts in counts if programs * parts < 2 * wanted]


def more(problem: AttentionProblem) -> Iterator[Schedule]:
    """Other legal schedules of whole keys that are worth a look."""
    head = (padded_head(problem.head), padded_head(problem.value_head))
    base = Schedule(head=head, exact=head == (problem.head, problem.value_head), parts=1)
    for tile, warps, stages in product(TILES, (1, 2, 4, 8), (1, 2, 3, 4)):
        found = base.replace(tile=tile, warps=warps, pipeline_depth=stages)
        if _is_legal(found, problem):
            yield found
            yield from (each for each in in_parts(found, problem) if _is_legal(each, problem))


def _is_legal(schedule: Schedule, problem: AttentionProblem) -> bool:
    return all(rule.holds(schedule, problem) for rule in RULES)


MODEL = WalkModel(AttentionProblem, attention_walk, starts, more)
