"""The schedules of attention to pages on GPUs: those of attention, with steps of keys that fit pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.scheduling.families.attention.gpu import space as attention
from tessera.scheduling.families.attention.gpu.choice import WalkModel
from tessera.scheduling.families.attention.gpu.rules import RULES as ATTENTION_RULES
from tessera.scheduling.families.paged_attention.gpu.walk import paged_walk
from tessera.scheduling.families.paged_attention.space import PagedAttentionProblem
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule

WHOLE = "whole_pages"
"""The knob that says that a page is whole steps."""


def _is_whole(schedule: Schedule, problem: PagedAttentionProblem) -> bool:
    return problem.page > 0 and problem.page % schedule.integers("tile")[1] == 0


def _pages(schedule: Schedule, problem: PagedAttentionProblem) -> bool:
    return bool(schedule[WHOLE]) == _is_whole(schedule, problem)


RULES: tuple[Rule[Any], ...] = (
    *ATTENTION_RULES,
    Rule("whole-pages", "steps are whole in pages if the keys of a page are whole steps, and only then", _pages),
)


def space(problem: PagedAttentionProblem) -> Space[PagedAttentionProblem]:
    """All schedules of one attention to pages."""
    knob = Knob(WHOLE, (True, False), "a page is whole steps, so that only the last keys of a sequence are masked")
    return Space((*attention.space(problem).knobs, knob), RULES, problem, default_schedule(problem))


def default_schedule(problem: PagedAttentionProblem) -> Schedule:
    """The first of attention's starts that the model thinks about as fast as the fastest, with the keys in as many
    parts as pay; steps that are whole in pages come before others. Problems of about the same size share a choice, of
    pages of one size.
    """
    return MODEL.default(problem, attention.about_as_large(problem), RULES)


def _starts(problem: PagedAttentionProblem) -> Sequence[Schedule]:
    fitted = [_fitted(each, problem) for each in attention.starts(problem)]
    return sorted(fitted, key=lambda each: not each[WHOLE])


def _more(problem: PagedAttentionProblem) -> Iterator[Schedule]:
    return (_fitted(each, problem) for each in attention.more(problem))


def _fitted(schedule: Schedule, problem: PagedAttentionProblem) -> Schedule:
    return schedule.replace(**{WHOLE: _is_whole(schedule, problem)})


MODEL = WalkModel(PagedAttentionProblem, paged_walk, _starts, _more)
