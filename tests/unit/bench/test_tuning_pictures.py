"""The pictures of the page on the cost model: from recorded tables to samples, and from these to axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.tuning.pictures import Sample, accuracy, main, sampled, search, terms
from tests.unit.bench.recorded import table
from tests.unit.tuning.support import SPACE, misled_seconds, synthetic_seconds


def samples(count: int = 6) -> list[Sample]:
    """Schedules of which each takes longer than the one before, and is predicted to."""
    return [
        Sample(
            f"unroll={n}", n * 1e-3, n * 2e-3, "DRAM bandwidth" if n % 2 else "spills", {"DRAM": n * 1e-3, "L2": 1e-9}
        )
        for n in range(1, count + 1)
    ]


def test_accuracy_is_by_resource_and_says_the_rank_correlation() -> None:
    (axes,) = accuracy({"kernel": samples()}).axes
    assert "rank correlation 1.00, 6 schedules" in axes.get_title()
    assert [line.get_label() for line in axes.lines[:2]] == ["DRAM bandwidth", "spills"]
    measured: Any = axes.lines[0].get_ydata()
    assert list(measured) == pytest.approx([1.0, 3.0, 5.0])


def test_terms_go_from_the_best_predicted_to_the_worst_and_leave_out_what_is_nothing() -> None:
    figure = terms("kernel", samples())
    assert [axes.get_title(loc="left") for axes in figure.axes][::3] == ["DRAM bandwidth: unroll=1", "spills: unroll=6"]
    assert [len(axes.patches) for axes in figure.axes] == [1, 1, 1, 1]


def test_search_follows_the_order_of_the_model() -> None:
    turned = list(reversed(samples()))
    (axes,) = search({"kernel": turned}).axes
    ours: Any = next(line for line in axes.lines if line.get_label() == "the model's order").get_ydata()
    assert list(ours) == pytest.approx([1 / 6, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0])


def test_schedules_are_drawn_at_equal_distances_of_the_models_order() -> None:
    found = sampled(table(predict=misled_seconds), 5)
    predicted = [sample.predicted_s for sample in found]
    assert predicted == sorted(predicted)
    everything = sorted(misled_seconds(schedule) for schedule in SPACE.candidates())
    assert (predicted[0], predicted[-1]) == (everything[0], everything[-1])
    by_text = {str(schedule): synthetic_seconds(schedule) for schedule in SPACE.candidates()}
    assert [sample.measured_s for sample in found] == pytest.approx([by_text[sample.schedule] for sample in found])


def test_the_pictures_of_the_page_are_drawn_of_recorded_tables(tmp_path: Path) -> None:
    assert main(["--folder", str(tmp_path), "--count", "4"]) == 0
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {f"cost-model-{name}.png" for name in ("accuracy", "terms", "search")}
