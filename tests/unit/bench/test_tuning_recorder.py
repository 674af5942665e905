"""Recording tables: what is recorded of a real, small problem, and that an interrupted recording goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bench.tuning.recorder
from bench.__main__ import main
from bench.tuning import predictions
from bench.tuning.figures import LARGE, LEAST_LEGAL, LEAST_TABLES
from bench.tuning.problems import PROBLEMS, Problem, everything, matching, with_defaults
from bench.tuning.record import summary
from bench.tuning.recorder import Recorder
from bench.tuning.table import read
from tessera import op
from tessera.errors import TuneFailedError
from tessera.scheduling.language.knobs import Space

SMALL = Problem("softmax", "8x64", op.softmax, [(8, 64)], everything)


@pytest.fixture(autouse=True)
def one_thread_and_few_trials(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bench.tuning.recorder, "TUNED_TRIALS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_schedule_is_recorded_and_an_interrupted_recording_goes_on(tmp_path: Path) -> None:
    ticks = itertools.count()
    first = Recorder(SMALL, tmp_path, deadline=3, clock=lambda: float(next(ticks)))
    begun = first.run()
    assert first.part.exists()
    assert not first.path.exists()
    assert not begun.exhaustive
    told: list[str] = []
    second = Recorder(SMALL, tmp_path, report=told.append)
    whole = second.run()
    assert not second.part.exists()
    assert whole.exhaustive
    assert whole.anchors[: len(begun.anchors)] == begun.anchors
    assert set(whole.seconds) == set(second.legal)
    assert {record.role for record in whole.records} >= {"space", "tuned"}
    assert all(record.estimated_s and record.terms for record in whole.records)
    assert all(len(whole.samples(record.schedule)) >= 2 for record in whole.records)
    assert whole.about.identity == second.posed.problem.identity
    again = read(second.path)
    assert again.best_s == pytest.approx(whole.best_s, rel=1e-3)
    assert again.about.knobs == whole.about.knobs
    assert "all" in summary(again)
    assert told


def test_a_table_of_this_machine_is_posed_anew_with_the_estimates_it_was_recorded_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(SMALL, tmp_path, most=3)
    table = recorder.run()
    monkeypatch.setattr(predictions, "PROBLEMS", (SMALL,))
    posed = predictions.problem_of(table)
    assert posed.build(table.about.default).launches
    assert set(posed.space.candidates()) == set(table.seconds)
    for record in table.records:
        assert posed.predict(record.schedule) == pytest.approx(record.estimated_s, rel=1e-4)


def test_at_most_so_many_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(SMALL, tmp_path, most=2)
    recorder.run()
    table = read(recorder.path)
    assert not table.exhaustive
    assert len(table.records) < len(recorder.legal)
    assert f"of {len(recorder.legal)} schedules" in summary(table)


def test_a_default_that_cannot_be_measured_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.tuning.measure import measurement

    monkeypatch.setattr(measurement, "START_LIMIT_S", 0.0)
    with pytest.raises(TuneFailedError):
        Recorder(SMALL, tmp_path).run()


# -- the list of problems ---------------------------------------------------------------------------------------------


def test_problems_are_enough_and_told_apart_by_name() -> None:
    names = [problem.name for problem in PROBLEMS]
    assert len(set(names)) == len(names) >= LEAST_TABLES
    assert {problem.operator for problem in PROBLEMS} == {
        *LARGE,
        "depthwise",
        "softmax",
        "layer_norm",
    }
    assert [problem.name for problem in matching(["softmax"])] == [name for name in names if name.startswith("softmax")]
    assert matching([names[0]]) == [PROBLEMS[0]]
    with pytest.raises(KeyError):
        matching(["sofmax"])


@pytest.mark.parametrize("problem", matching(LARGE), ids=lambda problem: problem.name)
def test_large_spaces_hold_schedules_enough_and_the_default(problem: Problem) -> None:
    posed = problem.posed()
    if posed.whole.problem.target.vector_bits < 512:
        pytest.skip("choices are those of AVX-512")
    assert sum(1 for _ in posed.space.candidates()) >= LEAST_LEGAL
    assert not posed.space.violations(posed.whole.default)
    assert posed.whole.default == posed.space.default


def test_choices_keep_the_default_and_the_knobs_order() -> None:
    whole = SMALL.posed().whole
    assert isinstance(whole, Space)
    chosen = with_defaults(whole, {"tile": (whole.by_name["tile"].choices[0],)})
    assert chosen["tile"] == tuple(
        tile
        for tile in whole.by_name["tile"].choices
        if tile in (whole.by_name["tile"].choices[0], whole.default["tile"])
    )
    assert all(chosen[name] == (whole.default[name],) for name in chosen if name != "tile")


def test_an_operator_that_is_not_recorded_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["record", "sofmax"])
    assert "operators are attention, convolution" in capsys.readouterr().err
    assert main(["record", "--list"]) == 0
    assert PROBLEMS[0].name in capsys.readouterr().out
