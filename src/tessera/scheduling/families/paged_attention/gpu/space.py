"""The schedules of attention to pages on GPUs: those of attention, with steps of keys that fit pages."""

from __future__ import annotations

from typing import Any

from tessera.scheduling.families.attention.gpu import space as attention
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
    *attention.RULES,
    Rule("whole-pages", "steps are whole in pages if the keys of a page are whole steps, and only then", _pages),
)


def space(problem: PagedAttentionProblem) -> Space[PagedAttentionProblem]:
    """All schedules of one attention to pages."""
    knob = Knob(WHOLE, (True, False), "a page is whole steps, so that only the last keys of a sequence are masked")
    return Space((*attention.space(problem).knobs, knob), RULES, problem, default_schedule(problem))


def default_schedule(problem: PagedAttentionProblem) -> Schedule:
    """That of attention, of the starts whose steps are whole in pages; of all where none of these is legal."""
    fitting = tuple([start for start in attention.STARTS if problem.page and problem.page % start[0][1] == 0])
    for starts in (fitting, attention.STARTS):
        found = attention.default_schedule(problem, starts or attention.STARTS)
        found = found.replace(**{WHOLE: _is_whole(found, problem)})
        if all(rule.holds(found, problem) for rule in RULES):
            break
    return found
