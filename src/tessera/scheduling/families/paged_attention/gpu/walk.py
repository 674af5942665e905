"""What attention to pages does under a schedule on a GPU, for its cost model: attention's walk, page by page.

A step reads keys of one page, whose number it loads first. So pages shorter than the matrix units like make short
steps, and pages that are no whole steps make steps that are partly empty.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.scheduling.families.attention.gpu.cost import Walk
from tessera.scheduling.families.attention.gpu.walk import MASK_OPERATIONS, parts_of, seen_steps, walk_of
from tessera.scheduling.families.paged_attention.space import PagedAttentionProblem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_resources import ceil_div

_ENTRY_BYTES = 4
"""An entry of the table."""


def paged_walk(problem: PagedAttentionProblem, schedule: Schedule) -> Walk:
    """The walk over as many keys as tables have room for: how many there are is data."""
    rows, columns = schedule.integers("tile")
    page = max(problem.page, 1)
    of_page = ceil_div(page, columns)
    of_part = ceil_div(problem.keys, parts_of(schedule))
    steps = ceil_div(of_part, columns) if page % columns == 0 else ceil_div(of_part, page) * of_page
    found = walk_of(problem, schedule, steps, seen_steps(problem, rows, columns, steps), page / of_page)
    edges = 0.0 if page % columns == 0 else MASK_OPERATIONS  # every step is masked
    return replace(
        found,
        looked_up=True,
        loaded_bytes=found.loaded_bytes + _ENTRY_BYTES,
        operations=found.operations + edges,
    )
