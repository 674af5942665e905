"""The suite ``tune-faults``, half of it or in full: what it injects must be contained on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.probes.fault_kernels import FAULTS, Fault
from bench.suites import tune_faults
from tessera.tuning.measure.measurement import SubprocessMeasurer
from tests.whole import some


@pytest.fixture(scope="module")
def measurer() -> Iterator[SubprocessMeasurer]:
    made = SubprocessMeasurer()
    yield made
    made.close()


@pytest.mark.parametrize("fault", some(FAULTS), ids=lambda fault: fault.name)
def test_a_fault_is_a_labelled_trial_and_harms_nothing(fault: Fault, measurer: SubprocessMeasurer) -> None:
    # On a busy machine the right candidates beside it may wait for a processor for more than a second.
    found = tune_faults.inject(fault, measurer, limit_s=5.0)
    assert (found.trial.outcome in fault.outcomes, found.healthy) == (True, True), found.trial
    assert found.trial.detail


def test_there_are_as_many_faults_as_the_goal_asks_for() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20


def test_a_killed_tuning_is_finished_by_the_next(tmp_path: Path) -> None:
    lost, share = tune_faults.killed(3, 8, tmp_path, threads=1, module="tests.unit.tuning.store.victim")
    assert lost == 0
    assert share > 0
    assert list(tmp_path.rglob("1024x1024x1024.json")), "the second one ended"
