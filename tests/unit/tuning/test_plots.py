"""Pictures of tunings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import ArgumentError, CacheIOError
from tessera.tuning.measure.trial import Trial
from tessera.tuning.plots import best_so_far, correlation_of, draw, save_plot
from tests.unit.tuning.support import OPTIMUM, timing

SECONDS = (4e-3, None, 2e-3, 3e-3)
KC = (64, 128, 256, 512)


def trials(scale: float = 1.0) -> list[Trial]:
    """Four trials; the second one failed."""
    return [
        Trial(OPTIMUM.replace(kc=kc), "crashed")
        if seconds is None
        else Trial(OPTIMUM.replace(kc=kc), "ok", timing(seconds * scale), predicted_s=seconds)
        for kc, seconds in zip(KC, SECONDS, strict=True)
    ]


def test_the_best_so_far_never_rises() -> None:
    assert best_so_far(trials()) == [4e-3, 4e-3, 2e-3, 2e-3]
    assert best_so_far(trials()[1:2]) == [math.inf]


def test_rank_correlation() -> None:
    assert correlation_of(trials()) == pytest.approx(1.0)
    turned = [Trial(OPTIMUM, "ok", timing(s), predicted_s=1 / s) for s in (1.0, 2.0, 3.0)]
    assert correlation_of(turned) == pytest.approx(-1.0)
    # Predictions 1, 2, 2 of 1, 2, 3: ranks 1, 2.5, 2.5.
    tied = [Trial(OPTIMUM, "ok", timing(s), predicted_s=min(s, 2.0)) for s in (1.0, 2.0, 3.0)]
    assert correlation_of(tied) == pytest.approx(math.sqrt(0.75))
    assert correlation_of(trials()[:3]) is None
    assert correlation_of([Trial(OPTIMUM, "ok", timing(s), predicted_s=1.0) for s in (1.0, 2.0, 3.0)]) is None


def ydata(line: Any) -> list[float]:
    return [float(value) for value in line.get_ydata()]


def test_one_tuning_is_drawn_in_milliseconds_and_several_relative_to_their_best() -> None:
    left, right = draw([("one", trials())]).axes
    assert ydata(left.lines[0]) == pytest.approx([4.0, 4.0, 2.0, 2.0])
    failed: Any = left.lines[2].get_xdata()
    assert list(failed) == [2]
    assert ydata(right.lines[0]) == pytest.approx([4.0, 2.0, 3.0])
    left, _ = draw([("one", trials()), ("ten times slower", trials(10.0))]).axes
    first, second = left.lines[0], left.lines[3]
    assert ydata(first) == pytest.approx([2.0, 2.0, 1.0, 1.0])
    assert ydata(second) == pytest.approx([2.0, 2.0, 1.0, 1.0])


@pytest.mark.parametrize("name", ["tuning.png", "tuning.svg"])
def test_a_picture_is_written(tmp_path: Path, name: str) -> None:
    assert save_plot([("one", trials())], tmp_path / name).stat().st_size > 1000


def test_what_cannot_be_drawn_or_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="nothing was measured"):
        save_plot([("one", trials()[1:2])], tmp_path / "x.png")
    with pytest.raises(ArgumentError, match=r"x\.docx"):
        save_plot([("one", trials())], tmp_path / "x.docx")
    with pytest.raises(CacheIOError, match="cannot write"):
        save_plot([("one", trials())], tmp_path / "no" / "x.png")
