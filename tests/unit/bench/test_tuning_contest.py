"""The live contest of tuners: what is asked of them, checked and shown, with ours and one that stands in for TVM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.environments import NotMeasuredError
from bench.pool import Pool
from bench.results import Measurement
from bench.timing import Budget
from bench.tuning import live, ours
from bench.tuning.contest_problems import PROBLEMS, QUICK, TOLERANCE, Problem, deviation, reference
from bench.tuning.contestant import Contestant, Tuned
from bench.tuning.live import OURS, TVM, TVM_PYTHON, Tuning, figures, python_of

SHORT = Budget(seconds=0.0, kept=1, limit_s=0.0, rounds=3)


def _by_torch(problem: Problem) -> torch.Tensor:
    operands: list[torch.Tensor] = [torch.from_numpy(operand).double() for operand in problem.inputs()]
    if problem.operation == "matmul":
        return operands[0] @ operands[1]
    if problem.operation == "softmax":
        return torch.softmax(operands[0], -1)
    image, window = operands
    return torch.nn.functional.conv2d(image, window, padding=problem.shape[-1] // 2, groups=problem.shape[1])


@pytest.mark.parametrize("problem", QUICK, ids=lambda problem: problem.name)
def test_references_are_what_torch_computes(problem: Problem) -> None:
    exact = reference(problem)
    assert np.abs(exact - _by_torch(problem).numpy()).max() < 1e-12 * np.abs(exact).max()
    assert exact.shape == problem.result_shape
    assert deviation(problem, exact.astype(np.float32)) < TOLERANCE
    assert deviation(problem, 1.01 * exact) > TOLERANCE
    assert math.isinf(deviation(problem, np.full_like(exact, math.nan)))
    assert math.isinf(deviation(problem, exact[..., :1]))


def test_the_issues_problems_are_there() -> None:
    assert [problem.operation for problem in PROBLEMS] == ["matmul", "matmul", "softmax", "depthwise"]
    assert [problem.shape[0] for problem in PROBLEMS[:2]] == [512, 1024]
    assert {problem.operation for problem in QUICK} == {problem.operation for problem in PROBLEMS}
    assert PROBLEMS[0].flops == 2 * 512**3
    assert PROBLEMS[0].bytes == 3 * 4 * 512**2


class _Standing:
    """A tuner that takes its first idea, times `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def tune(self, problem: Problem, operands: Sequence[Any], trials: int) -> Tuned:
        found = self.factor * reference(problem)
        return Tuned(trials, "the first idea", lambda: None, lambda: found.astype(np.float32))


def test_a_contestant_tunes_is_checked_and_times_batches() -> None:
    contestant = Contestant(_Standing(1.0))
    tuned = contestant.answer({"do": "tune", "operation": "matmul", "shape": [64, 64, 64], "trials": 3})
    assert (tuned["trials"], tuned["label"]) == (3, "the first idea")
    assert tuned["seconds"] >= 0
    assert contestant.answer({"do": "prepare", "contender": "x"})["error"] < TOLERANCE
    assert contestant.answer({"do": "batch", "contender": "x"})["seconds"] > 0


def test_a_wrong_winner_is_not_timed() -> None:
    contestant = Contestant(_Standing(1.5))
    contestant.answer({"do": "tune", "operation": "softmax", "shape": [4, 8], "trials": 1})
    assert "wrong result" in contestant.answer({"do": "prepare", "contender": "x"})["not_measured"]


@pytest.mark.parametrize("problem", QUICK, ids=lambda problem: problem.name)
def test_our_winner_is_right(problem: Problem, cache_dir: Path) -> None:
    tuned = ours.TesseraTuner().tune(problem, problem.inputs(), 2)
    tuned.call()
    assert 1 <= tuned.trials <= 2
    assert deviation(problem, tuned.result()) < TOLERANCE


def test_without_tvm_our_side_is_measured_and_the_peer_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TVM_PYTHON, raising=False)
    measurements, tunings = live.hold(QUICK[0], 1, {OURS.name: 1, TVM.name: 1}, SHORT)
    mine, theirs = measurements
    assert mine.seconds is not None
    assert mine.error is not None
    assert mine.error < TOLERANCE
    assert theirs.reason == f"{TVM_PYTHON} names no Python that has apache-tvm"
    assert tunings.keys() == {OURS.name}


def test_tuners_begin_without_winners_of_anybody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESSERA_TUNE_SHIPPED", "1")
    started: list[dict[str, str]] = []

    def start(name: str, command: Sequence[str], variables: dict[str, str]) -> None:
        started.append(variables)
        raise NotMeasuredError("not needed here")

    monkeypatch.setattr(live, "Process", start)
    with pytest.raises(NotMeasuredError):
        live.Round(QUICK[0], 1, {OURS.name: 1}, tmp_path).prepare(OURS)
    assert [(one["TESSERA_CACHE_DIR"], one["TESSERA_TUNE_SHIPPED"]) for one in started] == [(str(tmp_path), "0")]


def test_the_peers_python_is_the_one_that_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    with pytest.raises(NotMeasuredError, match=TVM_PYTHON):
        python_of(TVM, {TVM_PYTHON: str(python)})
    python.touch()
    assert python_of(TVM, {TVM_PYTHON: str(python)}) == str(python)


def test_our_share_of_the_wall_clock_is_held_against_its_limit() -> None:
    tunings = {OURS.name: Tuning(3.0, 16, "tile=..."), TVM.name: Tuning(60.0, 64, "trace")}
    *seconds, share = figures(QUICK[0], tunings, 1, None)
    assert [figure.value for figure in seconds] == [3.0, 60.0]
    assert share.value == pytest.approx(5.0)
    assert share.met is True
    (alone, unknown) = figures(QUICK[0], {OURS.name: tunings[OURS.name]}, 1, "no TVM")
    assert alone.value == 3.0
    assert (unknown.value, unknown.met, unknown.reason) == (None, None, "no TVM")


def test_results_are_shown_like_those_of_other_suites() -> None:
    mine = Measurement(OURS.name, OURS.role, OURS.memory, seconds=1.0)
    theirs = Measurement(TVM.name, TVM.role, TVM.memory, seconds=1.2)
    tunings = {OURS.name: Tuning(3.0, 16, "tile=..."), TVM.name: Tuning(60.0, 64, "trace")}
    case = live.case_of(QUICK[0], 1, (mine, theirs), None)
    assert case.verdicts()[0].ratio == pytest.approx(1.2)
    line = live.summary(QUICK[0], case, tunings)
    assert line == f"{QUICK[0].name}: {TVM.name}'s time / ours 1.20; tuning: tessera 3.0 s, {TVM.name} 60.0 s"
    alone = live.case_of(QUICK[0], 1, (mine, replace(theirs, seconds=None)), None)
    assert "not measured" in live.summary(QUICK[0], alone, tunings)


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(problem: Problem, *rest: Any) -> tuple[list[Measurement], dict[str, Tuning]]:
        if problem == QUICK[1]:
            raise KeyboardInterrupt
        return [Measurement(OURS.name, OURS.role, OURS.memory, seconds=1.0)], {OURS.name: Tuning(1.0, 4, "")}

    monkeypatch.setattr(live, "hold", interrupted)
    monkeypatch.setattr(live, "bound", lambda *arguments: None)
    with Pool(1) as pool:
        result = live.run(pool, lambda text: None, quick=True)
    assert result.interrupted
    assert [case.label for case in result.cases] == [QUICK[0].name]
