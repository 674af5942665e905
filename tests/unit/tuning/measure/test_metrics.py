"""What trials say of the device, and why they do not."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ArgumentError
from tessera.tuning.measure.conditions import Conditions
from tessera.tuning.measure.metrics import CallWork, Metrics, Roof, metrics_of
from tessera.tuning.measure.trial import Timing, Trial, drift
from tests.unit.tuning.support import OPTIMUM

WORK = CallWork(2e9, 1e8, {"warm": Roof("L2", 1e12), "cold": Roof("DRAM", 2e11, "data sheet")})
FIGURES = {field.name for field in fields(Metrics)} - {"missing"}


def test_throughput_and_the_share_of_the_memory_that_the_bytes_come_from() -> None:
    warm, cold = metrics_of(1e-3, WORK), metrics_of(1e-3, WORK, "cold")
    assert (warm.flop_per_s, warm.byte_per_s) == (2e12, 1e11)
    assert warm.bandwidth_share == pytest.approx(0.1)
    assert cold.bandwidth_share == pytest.approx(0.5)
    assert (warm.memory, cold.memory) == ("L2 (measured)", "DRAM (data sheet)")


times = st.floats(1e-9, 1e3)
works = st.one_of(
    st.none(),
    st.builds(
        CallWork,
        st.floats(0, 1e18),
        st.floats(0, 1e15),
        st.one_of(st.just({}), st.just({"warm": Roof("HBM", 1e12)})),
        is_gpu=st.booleans(),
    ),
)


@given(times, works, st.sampled_from(["warm", "cold"]), st.one_of(st.none(), st.floats(0, 1)))
def test_what_cannot_be_had_is_none_with_the_reason(
    seconds: float, work: CallWork | None, cache: str, limit: float | None
) -> None:
    metrics = metrics_of(seconds, work, cache, limit)  # type: ignore[arg-type]
    absent = {name for name in FIGURES if getattr(metrics, name) is None}
    assert absent == set(metrics.missing)
    assert all(metrics.missing.values())
    assert json.loads(json.dumps(metrics.to_json()))["missing"] == dict(metrics.missing)


def test_occupancy_is_a_matter_of_gpus() -> None:
    assert "one worker" in metrics_of(1e-3, WORK).missing["occupancy"]
    on_gpu = metrics_of(1e-3, CallWork(1.0, 1.0, is_gpu=True), occupancy_limit=0.5)
    assert "counters" in on_gpu.missing["occupancy"]
    assert on_gpu.occupancy_limit == 0.5


def test_what_was_disturbed_tells_nothing_of_the_machine() -> None:
    then, now = Timing.of([1.0]), Timing.of([3.0])
    assert drift(then, now) == 3.0
    assert drift(then, None) == drift(None, now) == 1.0
    assert drift(then, Timing.of([3.0], contended=True)) == drift(Timing.of([1.0], contended=True), now) == 1.0
    wide = Timing(3.0, 0.9, 4.0, 5, 5)
    assert drift(then, wide) == drift(wide, then) == 1.0


def test_a_trial_with_metrics_goes_to_other_processes_and_into_sets() -> None:
    trial = Trial(OPTIMUM, "ok", Timing(1.0, 1.0, 1.0, 1, 1), metrics=metrics_of(1.0, WORK))
    assert {pickle.loads(pickle.dumps(trial)), trial} == {trial}


def test_conditions_are_words_that_mean_something() -> None:
    with pytest.raises(ArgumentError, match="lukewarm"):
        Conditions("lukewarm")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="launch='raw' is none of call, graph, stream"):
        Conditions(launch="raw")  # type: ignore[arg-type]
    assert Conditions().named("on_device") == "on_device"
    assert Conditions("cold", "stream").named("on_device") == "on_device, cold caches, stream launches"


@given(
    st.sampled_from(["ok", "wrong", "crashed", "timeout", "out_of_memory", "compile_error"]),
    times,
    st.text(max_size=20),
    st.one_of(st.none(), times),
    st.one_of(st.none(), st.builds(Conditions, st.sampled_from(["warm", "cold"]), st.sampled_from(["call", "graph"]))),
    st.sampled_from(["screen", "final"]),
)
def test_a_trial_survives_its_line_of_the_log(
    outcome: str, seconds: float, detail: str, predicted: float | None, conditions: Conditions | None, stage: str
) -> None:
    timing = Timing(seconds, seconds / 2, seconds * 2, 3, 5, True) if outcome == "ok" else None
    trial = Trial(OPTIMUM, outcome, timing, detail, predicted, conditions, stage=stage)  # type: ignore[arg-type]
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial
