from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import settings
from tessera.errors import ArgumentError
from tessera.tuning.autotuner import Autotune
from tessera.tuning.measure.forkserver_client import ForkServer
from tessera.tuning.measure.measurement import WORKER, ReplayMeasurer
from tests.unit.tuning.support import MATMUL, OPTIMUM, SPACE, problem, synthetic_table

SECONDS = 120.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path, tune_site_dir=None, autotune=False, tune_share=0.1):
        yield


@pytest.fixture
def autotune() -> Iterator[Autotune]:
    def no_backend() -> None:
        raise NotImplementedError

    made = Autotune(no_backend, ReplayMeasurer(synthetic_table()))  # type: ignore[arg-type]
    yield made
    made.enable(False)


def test_kernels_that_are_bound_run_as_they_are_and_are_tuned_afterwards(autotune: Autotune) -> None:
    autotune.enable(True)
    assert autotune.warmup is not None
    with autotune.warmup.collecting() as tickets:
        assert autotune.schedule_for(problem()).schedule == SPACE.default
    assert [ticket.state for ticket in tickets] == ["waiting"]
    assert autotune.wait(SECONDS)
    with autotune.warmup.collecting() as tickets:
        config = autotune.schedule_for(problem())
    assert (config.source, config.schedule, tickets) == ("cache", OPTIMUM, [])


def test_status_says_how_far_tuning_is(autotune: Autotune) -> None:
    assert "tuning: off" in str(autotune.status())
    autotune.enable(True, share=0.05)
    assert autotune.warmup is not None
    with autotune.warmup.collecting():
        autotune.schedule_for(problem())
    before = autotune.status()
    assert "in at most 5% of the time between calls" in str(before)
    assert f"waiting, 0 of 16 trials, 0 calls: {MATMUL}" in str(before)
    assert autotune.wait(SECONDS)
    after = autotune.status()
    assert (after.tuned, after.warming[0].best_s) == (1, 1e-3)
    assert f"trials, best 1000 us, 0 calls: {MATMUL}" in str(after)


def test_first_calls_wait_only_if_that_is_wanted(autotune: Autotune) -> None:
    autotune.enable(True, share="first_call")
    assert autotune.warmup is None
    assert autotune.schedule_for(problem()).source == "measured"
    assert "on, at first calls" in str(autotune.status())
    assert autotune.wait(SECONDS)


def share_of(autotune: Autotune) -> float | None:
    """The share of the warm-up that there is."""
    return None if autotune.warmup is None else autotune.warmup.share


def test_settings_decide_until_it_is_turned(autotune: Autotune) -> None:
    assert share_of(autotune) is None
    with settings.override(autotune=True, tune_share=None):
        assert autotune.enabled
        assert share_of(autotune) is None
    with settings.override(autotune=True, tune_share=0.25):
        assert share_of(autotune) == 0.25
        autotune.enable(True, share=0.5)
        assert share_of(autotune) == 0.5
        autotune.enable(False)
        assert share_of(autotune) is None


@pytest.mark.parametrize("share", [0, -1, 1.5, float("nan"), True, "sometimes"])
def test_a_share_that_is_none_is_refused(autotune: Autotune, share: object) -> None:
    with pytest.raises(ArgumentError, match="share="):
        autotune.enable(True, share=share)  # type: ignore[arg-type]
    assert not autotune.enabled


def test_the_worker_of_a_running_program_has_a_low_priority() -> None:
    worker = ForkServer(WORKER, niceness=10)
    try:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == 10
    finally:
        worker.close()
