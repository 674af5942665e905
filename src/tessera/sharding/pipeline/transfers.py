"""What ranks move beside what they compute: SEND and RECV for each value that crosses ranks, REDUCE and GATHER."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from typing import Literal

from tessera.sharding.pipeline.actions import WEIGHTS, Action, PipelineSchedule, is_split, producer
from tessera.sharding.pipeline.simulator import EQUAL, simulate


def with_transfers(schedule: PipelineSchedule, *, reduce: bool = False, gather: bool = False) -> PipelineSchedule:
    """The schedule with its transfers; `reduce` combines each stage's gradients after its last W, `gather` collects its
    weights before its first F.

    A RECV is posted before the first action that begins with or after the program that makes what it carries, if all
    programs take one length: early enough that a SEND which waits for its RECV never closes a circle, and no earlier,
    so that buffers are not taken long before they are filled.
    """
    started = {span.action: span.start for span in simulate(schedule, EQUAL).spans}
    split = is_split(schedule)
    starts = [[started[action] for action in row] for row in schedule.ranks]
    posts: list[dict[int, list[tuple[float, Action]]]] = [defaultdict(list) for _ in schedule.ranks]
    sends: dict[Action, Action] = {}
    for rank, action in schedule.programs():
        source = producer(action, schedule.stages, split)
        if source is None or schedule.rank_of(source.stage) == rank:
            continue
        of: Literal["F", "B"] = "F" if action.kind == "F" else "B"
        sends[source] = Action("SEND", source.stage, source.microbatch, of)
        place = bisect_left(starts[rank], started[source])
        posts[rank][place].append((started[source], Action("RECV", action.stage, action.microbatch, of)))
    table = []
    for rank, row in enumerate(schedule.ranks):
        first = {action.stage: index for index, action in reversed(list(enumerate(row))) if action.kind == "F"}
        last = {action.stage: index for index, action in enumerate(row) if action.kind in WEIGHTS}
        actions: list[Action] = []
        for index, action in enumerate(row):
            if gather and first[action.stage] == index:
                actions.append(Action("GATHER", action.stage, -1))
            actions += [post for _, post in sorted(posts[rank][index])]
            actions.append(action)
            if action in sends:
                actions.append(sends[action])
            if reduce and last[action.stage] == index:
                actions.append(Action("REDUCE", action.stage, -1))
        table.append(tuple(actions))
    return replace(schedule, ranks=tuple(table))
