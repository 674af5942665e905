"""Worker processes: what they answer, and what is said when they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import environments
from bench.cases import Case
from bench.contest import Contender, contest
from bench.environments import NotMeasuredError, environment, unaided
from bench.micro import CALLS
from bench.pool import Pool, prepare
from bench.results import Goal
from bench.suites.overhead import QUANTITIES, figure
from bench.timing import Budget
from bench.worker import Worker

SMALL = Case("matmul", (32, 32, 32), "fp32")
SHORT = Budget(seconds=0.0, kept=1, limit_s=0.0, rounds=3)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as workers:
        yield workers


def test_a_worker_prepares_checks_and_times(pool: Pool) -> None:
    call = prepare(pool, "torch", "torch", "torch_fresh", SMALL)
    assert call.error is not None
    assert call.error < 1e-5
    assert call.batch().seconds > 0.0


def test_what_a_library_lacks_is_reported_as_the_reason(pool: Pool) -> None:
    with pytest.raises(NotMeasuredError, match="fp32 only"):
        prepare(pool, "torch", "packed", "mkl_packed", Case("matmul", (32, 32, 32), "bf16"))


def test_a_dead_worker_gives_its_last_words_and_is_replaced(pool: Pool) -> None:
    with pytest.raises(NotMeasuredError, match="ended with code 1: KeyError: 'nobody'"):
        prepare(pool, "torch", "nobody", "nobody", SMALL)
    assert prepare(pool, "torch", "torch", "torch_fresh", SMALL).batch().seconds > 0.0


def test_a_contest_lists_every_contender(pool: Pool) -> None:
    goal = Goal("best library", ("library",), 1.0)
    contenders = [
        Contender("torch", "torch", "torch_fresh", "eager"),
        Contender("none", "torch", "mkl_packed", "library"),
    ]
    problem = Case("matmul", (32, 32, 32), "bf16")
    found = contest(pool, problem, contenders, goals=(goal,), budget=SHORT)
    eager, absent = found.measurements
    assert eager.seconds is not None
    assert absent.seconds is None
    assert absent.reason == "MKL's packed product is fp32 only"
    assert found.verdicts()[0].met is None


def test_thread_counts_reach_every_library() -> None:
    found = environment("torch", 2)
    assert {found[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"2"}


def test_a_tuner_without_aids_finds_no_winner_of_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_TUNE_SITE_DIR", "/somewhere")
    monkeypatch.setenv("TESSERA_TUNE_SHIPPED", "1")
    found = unaided("tessera", 1, tmp_path)
    assert (found["TESSERA_CACHE_DIR"], found["TESSERA_TUNE_SHIPPED"]) == (str(tmp_path), "0")
    assert "TESSERA_TUNE_SITE_DIR" not in found
    assert found["OMP_NUM_THREADS"] == "1"


def test_a_misspelt_environment_is_not_taken_for_the_plain_one() -> None:
    with pytest.raises(KeyError, match="mlk"):
        environment("mlk", 1)


def test_without_a_compiler_the_shim_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    environments.mkl_shim.cache_clear()
    with pytest.raises(NotMeasuredError, match="C compiler"):
        environment("mkl", 1)
    with pytest.raises(NotMeasuredError, match=r"C\+\+ compiler"):
        environment("compile", 1)


def test_an_overhead_is_the_difference_of_its_calls() -> None:
    evaluation = next(q for q in QUANTITIES if q.name == "eval() of one operator")
    seconds = {"tessera node": 1e-6, "tessera node+eval": 3.5e-6}
    found = figure(evaluation, seconds, {}, threads=1)
    assert found.value == pytest.approx(2.5)
    assert found.met is True


def test_an_overhead_that_lacks_a_call_gives_the_reason() -> None:
    evaluation = next(q for q in QUANTITIES if q.name == "eval() of one operator")
    found = figure(evaluation, {"tessera node": 1e-6}, {"tessera node+eval": "no eval"}, threads=1)
    assert (found.value, found.reason) == (None, "no eval")


def test_calls_after_a_pause_are_timed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setitem(CALLS, "torch one", lambda: lambda: made.append(1))
    worker = Worker(1, "torch")
    worker.micro("torch one", "torch one", single=True)
    before = len(made)
    worker.batch("torch one")
    assert len(made) == before + 1
