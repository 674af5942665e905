"""The schedules of attention to pages on CPUs: those of attention with elements of a head along the lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tessera.scheduling.families.attention import space as attention
from tessera.scheduling.families.attention.space import AttentionProblem, attention_problem
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target


@dataclass(frozen=True)
class PagedAttentionProblem(AttentionProblem):
    """That of attention to as many keys as tables have room for, in pages of `page` keys."""

    page: int = 1


def paged_problem(
    spec: PagedAttentionSpec, target: Target, extents: Mapping[str, int], workers: int = 1
) -> PagedAttentionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    page = extents["k"]
    found = attention_problem(spec, target, {**extents, "k": page * extents["t"]}, workers)
    return PagedAttentionProblem(**{**vars(found), "native_bf16": False}, page=page)


def space(problem: PagedAttentionProblem) -> Space[AttentionProblem]:
    """All schedules of one attention to pages."""
    found = attention.space(problem)
    start = attention.few_queries(problem)
    knobs = tuple([replace(knob, choices=("head",)) if knob.name == "lanes" else knob for knob in found.knobs])
    return Space(knobs, attention.RULES, problem, start, (start,))


def default_schedule(problem: PagedAttentionProblem) -> Schedule:
    """Elements of a head along the lanes, however many queries there are."""
    return attention.few_queries(problem)
