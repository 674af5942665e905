"""The schedules: gpipe, 1f1b, interleaved and zero-bubble, made for any number of ranks and microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tessera.errors import ArgumentError
from tessera.sharding.pipeline.actions import Action, PipelineSchedule


def schedule(name: str, ranks: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """The table of a schedule by its name: "gpipe", "1f1b", "interleaved" (of `chunks` stages a rank) or "zb1p".

    Raises ArgumentError for an unknown name, and for numbers that it cannot be made for.
    """
    if name not in GENERATORS:
        raise ArgumentError(f"{name!r} is no pipeline schedule", hints=[f"there are {', '.join(GENERATORS)}"])
    if min(ranks, microbatches, chunks) < 1:
        raise ArgumentError(
            f"{name}: {ranks} ranks, {microbatches} microbatches and {chunks} chunks: all are at least 1"
        )
    if chunks > 1 and name != "interleaved":
        raise ArgumentError(f"{name} has one stage a rank, not {chunks}", hints=['schedule="interleaved" has several'])
    return GENERATORS[name](ranks, microbatches, chunks)


def gpipe(ranks: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """All forwards, then all backwards (Huang et al., GPipe, arXiv:1811.06965). Every rank keeps all activations."""
    table = tuple(
        tuple(Action(kind, rank, microbatch) for kind in ("F", "BW") for microbatch in range(microbatches))
        for rank in range(ranks)
    )
    return PipelineSchedule("gpipe", microbatches, 1, table)


def one_forward_one_backward(ranks: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """Forwards until the first cotangent can come, then one backward after each (PipeDream-Flush, arXiv:2006.09503).

    As long as gpipe; rank r keeps at most ranks - r activations.
    """
    return PipelineSchedule(
        "1f1b", microbatches, 1, tuple(_alternating(rank, ranks, microbatches) for rank in range(ranks))
    )


def _alternating(rank: int, ranks: int, microbatches: int) -> tuple[Action, ...]:
    warm = min(ranks - rank - 1, microbatches)
    actions = [Action("F", rank, microbatch) for microbatch in range(warm)]
    for microbatch in range(microbatches):
        if microbatch + warm < microbatches:
            actions.append(Action("F", rank, microbatch + warm))
        actions.append(Action("BW", rank, microbatch))
    return tuple(actions)


def interleaved(ranks: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """1f1b over several stages a rank (Narayanan et al., arXiv:2104.04473): the bubble shrinks by their number.

    Microbatches go through the stages in groups of as many as there are ranks. Where the last group is smaller, its
    missing microbatches are left out of the table of a whole one, and the bubble is larger than (p - 1)/(v m).
    """
    groups = -(-microbatches // ranks)
    slots = [
        (chunk, group * ranks + place) for group in range(groups) for chunk in range(chunks) for place in range(ranks)
    ]
    back = [(chunks - 1 - chunk, microbatch) for chunk, microbatch in slots]
    table = []
    for rank in range(ranks):
        warm = min((ranks - rank - 1) * (2 if chunks > 1 else 1) + (chunks - 1) * ranks, len(slots))
        actions = [Action("F", chunk * ranks + rank, microbatch) for chunk, microbatch in slots[:warm]]
        for index, (chunk, microbatch) in enumerate(back):
            if index + warm < len(slots):
                ahead, other = slots[index + warm]
                actions.append(Action("F", ahead * ranks + rank, other))
            actions.append(Action("BW", chunk * ranks + rank, microbatch))
        table.append(tuple(action for action in actions if action.microbatch < microbatches))
    return PipelineSchedule("interleaved", microbatches, chunks, tuple(table))


def zero_bubble(ranks: int, microbatches: int, chunks: int = 1) -> PipelineSchedule:
    """1f1b with B and W apart (Qi et al., ZB-H1, arXiv:2401.10241): W fills what would be idle.

    Rank r runs its W r microbatches late, so that cotangents travel first and no rank keeps more than 1f1b's first.
    """
    table = []
    for rank in range(ranks):
        warm = min(ranks - rank - 1, microbatches)
        actions = [Action("F", rank, microbatch) for microbatch in range(warm)]
        for microbatch in range(microbatches):
            if microbatch + warm < microbatches:
                actions.append(Action("F", rank, microbatch + warm))
            actions.append(Action("B", rank, microbatch))
            if microbatch >= rank:
                actions.append(Action("W", rank, microbatch - rank))
        late = range(max(microbatches - rank, 0), microbatches)
        table.append((*actions, *(Action("W", rank, microbatch) for microbatch in late)))
    return PipelineSchedule("zb1p", microbatches, 1, tuple(table))


GENERATORS: Final[Mapping[str, Callable[[int, int, int], PipelineSchedule]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb1p": zero_bubble,
}
"""By the names of `dist.pipeline(schedule=...)`."""
