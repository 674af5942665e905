"""Measuring candidates of a GPU in a worker process: their device's clock counts, and a fault ends that worker only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.backend.contract import GpuParameter
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.measurement import Effort, SubprocessMeasurer
from tessera.tuning.measure.trial import Trial
from tessera.tuning.measure.workload import Case, GpuLaunch, OperandSpec, SlotAddress, Workload, materialize
from tests.unit.cuda.fake import kernel
from tests.unit.tuning.measure import kernels
from tests.unit.tuning.measure.device_worker import FLUSH_S, SECONDS

ROOT = Path(__file__).parents[4]
BRIEF = Effort(rounds=3, sample_s=2e-4, lag=100.0, limit_s=1.0)
ELEMENTS = 37


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch) -> Iterator[SubprocessMeasurer]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = SubprocessMeasurer(worker="tests.unit.tuning.measure.device_worker")
    yield made
    made.close()


def workload(cache: str = "warm", mode: str = "graph") -> Workload:
    """out = 2 in, on the fake device."""
    vector = OperandSpec((ELEMENTS,), (1,), "fp32", seed=3)
    checks = (check_output(1, FullReference(materialize(vector).tensor.double() * 2), "fp32"),)
    return Workload((vector, vector), checks, cache=cache, time_limit_s=60.0, device="interpreter", launch=mode)  # type: ignore[arg-type]


def launch(entry: str, source: int = 0, target: int = 1, arch: str = "sm_90", at: int = 0) -> GpuLaunch:
    parameters = (GpuParameter("x", "*fp32", 0), GpuParameter("y", "*fp32", 1), GpuParameter("n", "i32", 0, "size"))
    made = kernel(*parameters, entry=entry, arch=arch).to_bytes()
    return GpuLaunch(made, (1, 1, 1), (SlotAddress(source), SlotAddress(target, at), ELEMENTS))


def case(on: Workload, *entries: str) -> Case:
    return Case(on, tuple(launch(entry) for entry in entries))


def measure(measurer: SubprocessMeasurer, *cases: Case) -> list[Trial]:
    return measurer.measure([(Schedule(number=number), case) for number, case in enumerate(cases)], BRIEF)


def test_times_are_those_of_the_device(measurer: SubprocessMeasurer) -> None:
    on = workload()
    fast, slow = measure(measurer, case(on, "double"), case(on, "double_slowly"))
    assert fast.seconds == pytest.approx(SECONDS["double"])
    assert slow.seconds == pytest.approx(SECONDS["double_slowly"])
    assert fast.timing is not None
    assert not fast.timing.contended


def test_a_candidate_of_several_kernels_and_a_temporary(measurer: SubprocessMeasurer) -> None:
    on = workload()
    vector = on.operands[0]
    steps = (launch("double", 0, 2), launch("double", 0, 1))
    (trial,) = measure(measurer, Case(on, steps, temporaries=(vector,)))
    assert trial.outcome == "ok"
    assert trial.seconds == pytest.approx(2 * SECONDS["double"])


@pytest.mark.parametrize("mode", ["graph", "stream"])
def test_kernels_are_launched_as_the_case_asks(measurer: SubprocessMeasurer, mode: str) -> None:
    (trial,) = measure(measurer, case(workload(mode=mode), "double"))
    assert trial.seconds == pytest.approx(SECONDS["double"])
    assert trial.conditions is not None
    assert (trial.conditions.cache, trial.conditions.launch) == ("warm", mode)


def test_an_input_that_is_written_to_is_wrong_and_repaired(measurer: SubprocessMeasurer) -> None:
    on = workload()
    spoiling = Case(on, (launch("double"), launch("double", 1, 0)))
    spoilt, right = measure(measurer, spoiling, case(on, "double"))
    assert (spoilt.outcome, right.outcome) == ("wrong", "ok")
    assert "operand 0 was overwritten" in spoilt.detail


def test_on_a_cold_cache_each_call_finds_it_filled(measurer: SubprocessMeasurer) -> None:
    (trial,) = measure(measurer, case(workload("cold"), "double"))
    assert trial.seconds == pytest.approx(SECONDS["double"] + FLUSH_S)


def test_a_fault_ends_that_worker_only(measurer: SubprocessMeasurer) -> None:
    on = workload()
    before, fault, after = measure(measurer, case(on, "double"), case(on, "fault"), case(on, "double_slowly"))
    assert (before.outcome, fault.outcome, after.outcome) == ("ok", "crashed", "ok")
    assert "exit status 3" in fault.detail
    assert "E_DEVICE_FAULT" in fault.detail
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fault.detail
    assert "Traceback" not in fault.detail
    assert before.seconds == pytest.approx(SECONDS["double"])


def test_a_fault_while_it_is_timed_is_a_labelled_record_too(measurer: SubprocessMeasurer) -> None:
    on = workload()
    later, right = measure(measurer, case(on, "fault_later"), case(on, "double"))
    assert (later.outcome, right.outcome) == ("crashed", "ok")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in later.detail


def test_what_a_driver_refuses_is_labelled(measurer: SubprocessMeasurer) -> None:
    on = workload()
    wrong, large, foreign, beside, cpu = measure(
        measurer,
        case(on, "triple"),
        case(on, "large"),
        Case(on, (launch("double", arch="sm_80"),)),
        Case(on, (launch("double", at=-8),)),
        kernels.case(on, kernels.scale()),
    )
    assert (wrong.outcome, large.outcome, foreign.outcome) == ("wrong", "out_of_memory", "compile_error")
    assert "compiled for sm_80" in foreign.detail
    assert beside.outcome == "wrong"
    assert "next to operand 1" in beside.detail
    assert cpu.outcome == "compile_error"
    assert "cannot be measured on interpreter" in cpu.detail


def test_a_gpus_launch_is_refused_on_a_cpu() -> None:
    made = SubprocessMeasurer()
    try:
        (trial,) = measure(made, Case(kernels.doubling(), (launch("double"),)))
    finally:
        made.close()
    assert trial.outcome == "compile_error"
    assert "cannot be measured on a CPU" in trial.detail
