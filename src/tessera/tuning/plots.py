"""Pictures of a tuning: the best so far by trials, and predicted against measured times. Loads matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure

from tessera.errors import ArgumentError, CacheIOError
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.correlation import rank_correlation

Tuning: TypeAlias = tuple[str, Sequence[Trial]]
"""What was tuned, and its trials in the order made."""

_SHOWN_LABELS = 8


def save_plot(tunings: Sequence[Tuning], path: Path) -> Path:
    """Writes the picture of some tunings to `path`, whose ending says the format (.png, .svg, .pdf), and gives it.

    Raises ArgumentError where there is nothing to draw and for a format that there is not, CacheIOError where the file
    cannot be written.
    """
    if not any(trial.outcome == "ok" for _, trials in tunings for trial in trials):
        raise ArgumentError(
            "nothing was measured that could be drawn",
            hints=["a winner that is known is not tuned again, unless with force=True (--force)"],
        )
    figure = draw(tunings)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from error
    except OSError as error:
        raise CacheIOError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def draw(tunings: Sequence[Tuning]) -> Figure:
    """The two panels, best so far on the left. Of several tunings each is drawn relative to its best."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    progress, accuracy = figure.subplots(1, 2)
    drawn = [(label, trials) for label, trials in tunings if any(trial.outcome == "ok" for trial in trials)]
    for label, trials in drawn:
        _best_so_far(progress, label, trials, relative=len(drawn) > 1)
        _predicted(accuracy, label, trials)
    progress.set_xlabel("trials")
    progress.set_ylabel("best so far, relative to the best" if len(drawn) > 1 else "best so far, ms per call")
    progress.set_title("Search")
    _diagonal(accuracy)
    accuracy.set_title(_correlations(drawn))
    accuracy.set_xlabel("predicted, ms per call")
    accuracy.set_ylabel("measured, ms per call")
    if 1 < len(drawn) <= _SHOWN_LABELS:
        progress.legend(fontsize="small")
    elif len(drawn) == 1:
        figure.suptitle(drawn[0][0])
    return figure


def best_so_far(trials: Sequence[Trial]) -> list[float]:
    """Seconds of the fastest trial among the first, the first two, ...; infinite before one ran."""
    best, found = math.inf, []
    for trial in trials:
        best = min(best, trial.seconds)
        found.append(best)
    return found


def correlation_of(trials: Sequence[Trial]) -> float | None:
    """The rank correlation of predicted and measured times (`correlation.rank_correlation`)."""
    pairs = _pairs(trials)
    return rank_correlation([predicted for predicted, _ in pairs], [measured for _, measured in pairs])


def _pairs(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """(predicted, measured) seconds of the trials that have both."""
    return [
        (trial.predicted_s, trial.seconds)
        for trial in trials
        if trial.outcome == "ok" and trial.predicted_s is not None and math.isfinite(trial.predicted_s)
    ]


def _best_so_far(axes: Any, label: str, trials: Sequence[Trial], relative: bool) -> None:
    best = best_so_far(trials)
    unit = best[-1] if relative else 1e-3
    numbers = range(1, len(trials) + 1)
    (line,) = axes.step(numbers, [seconds / unit for seconds in best], where="post", label=label)
    measured = [(number, trial.seconds / unit) for number, trial in zip(numbers, trials, strict=True)]
    shown = [(number, value) for number, value in measured if math.isfinite(value)]
    axes.plot(*zip(*shown, strict=True), "o", markersize=3, alpha=0.4, color=line.get_color())
    failed = [number for number, value in measured if not math.isfinite(value)]
    # At the lower edge: a candidate that failed has no time.
    axes.plot(failed, [0.02] * len(failed), "x", color="tab:red", transform=axes.get_xaxis_transform())


def _predicted(axes: Any, label: str, trials: Sequence[Trial]) -> None:
    pairs = _pairs(trials)
    axes.plot([1e3 * a for a, _ in pairs], [1e3 * b for _, b in pairs], "o", markersize=4, alpha=0.6, label=label)


def _diagonal(axes: Any) -> None:
    """The line on which predictions are right, over the range of both axes."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color="grey", linewidth=1, zorder=0)


def _correlations(tunings: Sequence[Tuning]) -> str:
    found = [value for _, trials in tunings if (value := correlation_of(trials)) is not None]
    if not found:
        return "Cost model"
    if len(found) == 1:
        return f"Cost model: rank correlation {found[0]:.2f}"
    return f"Cost model: rank correlations {min(found):.2f} to {max(found):.2f}"
