"""`explain`: winner, runner-up, gap, what binds, and what the rules rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from tessera import settings
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.config import Config
from tessera.tuning.explanation import Gap, ScheduleExplanation, duration, explanation
from tests.unit.tuning.support import MATMUL, OPTIMUM, PROVENANCE, SPACE, problem, timing
from tests.unit.tuning.test_autotuner import SHAPE, tuner

OTHER = OPTIMUM.replace(kc=512)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path, tune_site_dir=None, autotune=False):
        yield


def record(
    schedule: Schedule, seconds: float, date: str = "2025-01-02", outcome: str = "ok", stage: str = "screen"
) -> Mapping[str, object]:
    """A line of the log."""
    provenance = {**PROVENANCE.to_json(), "date": date}
    made: dict[str, object] = {
        "provenance": provenance,
        "schedule": schedule.to_json(),
        "outcome": outcome,
        "predicted_s": 2 * seconds,
    } | {"stage": stage}
    taken = timing(seconds)
    return made | asdict(taken) if outcome == "ok" else made


MEASURED = Config(OPTIMUM, MATMUL, "cache", 1e-3, 1e-3, note="measured winner")


def explain(*records: Mapping[str, object]) -> ScheduleExplanation:
    return explanation(problem(), MEASURED, records)


def test_the_runner_up_is_the_fastest_other_one_of_the_same_tuning() -> None:
    found = explain(
        record(SPACE.default, 0.5e-3, date="2025-01-01"),
        record(OPTIMUM, 1.0e-3),
        record(OTHER, 1.1e-3),
        record(OPTIMUM.replace(kc=128), 1.2e-3),
        record(OPTIMUM.replace(kc=64), 1e-3, outcome="crashed"),
    )
    assert found.winner.measured_s == 1.0e-3
    assert found.runner_up is not None
    assert found.runner_up.schedule == OTHER
    assert found.gap is not None
    assert found.gap.fraction == pytest.approx(0.1)
    assert not found.gap.is_noise
    assert found.trials == {"ok": 3, "crashed": 1}


def test_who_was_timed_again_in_the_finals_goes_before_who_was_not() -> None:
    finalist, screened = OTHER, OPTIMUM.replace(kc=128)
    found = explain(
        record(screened, 0.9e-3),
        record(OPTIMUM, 1.0e-3),
        record(finalist, 1.1e-3),
        record(OPTIMUM, 1.0e-3, stage="final"),
        record(finalist, 1.002e-3, stage="final"),
    )
    assert found.runner_up is not None
    assert found.runner_up.schedule == finalist
    assert found.gap is not None
    assert found.gap.is_noise
    assert "canonical order" in str(found)


def test_spoiled_lines_of_the_log_are_passed_over() -> None:
    spoiled: list[dict[str, object]] = [
        {"schedule": 3},
        {**record(OTHER, 1e-3), "schedule": {"kc": {}}},
        {**record(OTHER, 1e-3), "median_s": "soon"},
        {**record(OTHER, 1e-3), "outcome": "\x1b[2J"},
        {**record(OTHER, 1e-3), "provenance": 3, "low_s": None},
    ]
    found = explain(*spoiled, record(OPTIMUM, 1.0e-3), record(OTHER, 1.1e-3))
    assert found.runner_up is not None
    assert found.runner_up.measured_s == 1.1e-3
    assert found.trials == {"ok": 2}


def test_the_tuning_that_found_the_winner_counts_whatever_the_clock_said() -> None:
    ahead = [record(OTHER, 0.9e-3, date="2035-01-01"), record(OPTIMUM, 0.8e-3, date="2035-01-01")]
    found = explain(*ahead, record(OPTIMUM, 1.0e-3), record(OTHER, 1.1e-3), record(OTHER, 1.2e-3, date="2025-01-03"))
    assert found.winner.measured_s == 1.0e-3
    assert found.runner_up is not None
    assert found.runner_up.measured_s == 1.1e-3


def test_without_measurements_the_model_gives_the_runner_up() -> None:
    found = explanation(problem(), Config(OPTIMUM, MATMUL, "model", 1e-3), [])
    assert found.runner_up is not None
    assert found.runner_up.schedule == OPTIMUM.replace(prefetch=False)
    assert found.gap == Gap(pytest.approx(0.05))  # type: ignore[arg-type]
    assert "+5.0% predicted" in str(found)


def test_rules_are_named_with_what_they_rejected() -> None:
    found = explain(record(OPTIMUM, 1e-3))
    legal = len(list(SPACE.candidates()))
    assert found.removed.rules == {"panel_fits": SPACE.size - legal}
    assert found.removed.legal == legal
    shown = str(found)
    assert f"{SPACE.size - legal} rejected by rule panel_fits" in shown
    assert "runner-up   none" in shown


def test_a_kernel_without_a_model_says_so() -> None:
    found = explanation(problem(), MEASURED, [])
    assert found.binding is None
    assert f"not known: {found.why_unbound}" in str(found)


def test_autotune_explains_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    autotune = tuner()
    autotune("matmul", SHAPE, method="on_device")
    found = autotune.explain("matmul", SHAPE)
    assert capsys.readouterr().out.strip() == str(found)
    assert found.winner.schedule == OPTIMUM
    assert found.config.source == "cache"
    assert found.runner_up is not None
    assert repr(found) == f"<explanation of {found.identity}: cache>"
    assert autotune.explain("matmul", (8, 8, 8)).config.source == "default"


def test_durations_have_units() -> None:
    assert [duration(s) for s in (1.234e-6, 4.5e-3, 2.0)] == ["1.23 us", "4.5 ms", "2 s"]
