"""The Gantt picture of a simulated schedule. Loads matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tessera.errors import ArgumentError, CacheIOError
from tessera.sharding.pipeline.simulator import Timeline

_COLOURS = {"F": "#4c78a8", "B": "#f58518", "W": "#54a24b", "BW": "#e45756"}
_MEANINGS = {"F": "forward", "B": "backward, inputs", "W": "backward, weights", "BW": "backward"}
_LABELLED = 400


def save(timelines: Sequence[Timeline], path: Path) -> Path:
    """Writes the picture to `path`, whose ending says the format (.png, .svg, .pdf), and gives the path.

    Raises ArgumentError for a format that there is not, CacheIOError where the file cannot be written.
    """
    figure = draw(timelines)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from error
    except OSError as error:
        raise CacheIOError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def draw(timelines: Sequence[Timeline]) -> Figure:
    """A panel for each timeline, on one axis of time; later stages of a rank are lighter."""
    if not timelines:
        raise ArgumentError("there is no timeline to draw")
    height = sum(len(timeline.schedule.ranks) for timeline in timelines)
    figure = Figure(figsize=(11, 1 + 0.3 * height + 0.5 * len(timelines)), layout="constrained")
    panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    unit = 1e3
    for axes, timeline in zip(panels, timelines, strict=True):
        _panel(axes, timeline, unit)
    panels[-1].set_xlabel("ms, predicted")
    kinds = {span.action.kind for timeline in timelines for span in timeline.spans}
    shown = [kind for kind in _COLOURS if kind in kinds]
    handles = [panels[0].bar(0, 0, color=_COLOURS[kind]) for kind in shown]
    figure.legend(handles, [_MEANINGS[kind] for kind in shown], loc="outside upper right", ncols=4, fontsize="small")
    return figure


def _panel(axes: Any, timeline: Timeline, unit: float) -> None:
    ranks, chunks = len(timeline.schedule.ranks), timeline.schedule.chunks
    for span in timeline.spans:
        shade = 1.0 - 0.55 * (span.action.stage // ranks) / chunks
        start, length = unit * span.start, unit * (span.end - span.start)
        axes.barh(
            span.rank, length, left=start, height=0.9, color=_COLOURS[span.action.kind], alpha=shade, edgecolor="white"
        )
        if len(timeline.spans) <= _LABELLED:
            axes.text(start + length / 2, span.rank, span.action.microbatch, ha="center", va="center", fontsize=6)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize="small")
    axes.invert_yaxis()
    axes.set_title(str(timeline), fontsize="small", loc="left")
