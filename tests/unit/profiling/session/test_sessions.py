"""Sessions over real plans: what is recorded, where, and what becomes of results nobody evaluated."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tessera import profile, profiler
from tessera.errors import ArgumentError, ProfileError
from tessera.lazy import node as nodes
from tessera.profiling.counters import gpus
from tessera.profiling.counters.cupti_activity import CuptiActivity
from tessera.profiling.recording import facts
from tessera.profiling.ring import recorder
from tessera.profiling.session import sessions
from tests import forked
from tests.unit.profiling.support import FACTS, run, two_step_plan


def kernels(session: profile.Session) -> list[profile.Record]:
    return [record for record in session.records() if record.kind == "kernel"]


def test_kernels_are_recorded_with_what_the_compiler_said() -> None:
    plan = two_step_plan()
    with profile.session(record_shapes=True) as session:
        run(plan)
    first, second = kernels(session)
    assert (first.kernel_name, first.operator, first.schedule) == ("add_kernel", "add", "tile=(16,)")
    assert (second.kernel_name, second.workers, second.fused) == ("double_kernel", 2, ("double", "cast"))
    assert first.shapes == ((16,), (16,))
    assert (first.plan_id, first.step_id, second.step_id) == (plan.number, 0, 1)
    assert first.thread_id == threading.get_ident()
    assert 0 <= first.start_us <= first.end_us <= second.start_us <= second.end_us
    assert (session.launched, session.recorded, session.dropped) == (2, 2, 0)


def test_counters_that_cannot_be_had_are_null_and_say_why() -> None:
    with profile.session() as session:
        run(two_step_plan())
    (record, _) = kernels(session)
    assert record.sm_occupancy is None
    assert "which CPUs do not have" in record.capability["sm_occupancy"]
    missing = [name for name in record.capability if getattr(record, name) is not None]
    assert missing == []
    session.capability["power_w"] = "what the session knows"
    assert kernels(session)[0].capability["power_w"] == "what the session knows"


def test_what_did_not_run_is_why_a_trace_lacks_its_columns() -> None:
    with profile.session() as session:
        run(two_step_plan())
    assert kernels(session)[0].capability["memcpy_dir"] == "the record is no copy"
    told = session.trace().capability
    assert "no copy ran" in told["memcpy_dir"]
    assert "no collective ran" in told["collective_type"]


def test_nothing_is_recorded_outside_a_session() -> None:
    plan = two_step_plan()
    run(plan)
    with profile.session() as session:
        pass
    run(plan)
    assert session.launched == 0
    assert not recorder.recording()


def test_shapes_are_recorded_only_when_asked_for() -> None:
    with profile.session() as session:
        run(two_step_plan())
    assert kernels(session)[0].shapes == ()


def test_each_of_nested_sessions_sees_what_ran_while_it_was_on() -> None:
    plan = two_step_plan()
    with profile.session() as outer:
        run(plan)
        with profile.session() as inner:
            run(plan, 2)
        run(plan)
    assert (outer.recorded, inner.recorded) == (8, 4)
    assert profile.session is profiler.session
    assert sessions.current() is outer


def test_regions_name_the_kernels_of_their_thread() -> None:
    plan = two_step_plan()
    with profile.session() as session:
        run(plan)
        with profile.region("forward"):
            run(plan)
            with profile.region("attention"):
                run(plan)
    assert [record.region for record in kernels(session)[::2]] == ["", "forward", "attention"]
    regions = {record.kernel_name: record for record in session.records() if record.kind == "region"}
    assert regions["forward"].start_us <= regions["attention"].start_us
    assert regions["attention"].end_us <= regions["forward"].end_us


def test_kernels_of_all_threads_are_recorded() -> None:
    plan = two_step_plan()
    threads = [threading.Thread(target=run, args=(plan, 20)) for _ in range(3)]
    with profile.session() as session, profile.region("main only"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert session.launched == session.recorded == 120
    assert {record.region for record in kernels(session)} == {""}


def test_marks_and_counters_stand_in_the_records() -> None:
    with profile.session() as session:
        session.mark("start/step_1")
        profile.counter("loss", 0.5, unit="scalar")
    mark, counter = session.records()
    assert (mark.kind, mark.kernel_name) == ("mark", "start/step_1")
    assert (counter.kind, counter.kernel_name, counter.value, counter.unit) == ("counter", "loss", 0.5, "scalar")


def test_session_can_be_read_while_it_is_on() -> None:
    with profile.session() as session:
        run(two_step_plan())
        assert len(kernels(session)) == 2
        run(two_step_plan())
        assert len(kernels(session)) == 4


def test_facts_outlive_their_plan_until_the_session_is_read() -> None:
    with profile.session() as session:
        plan = two_step_plan()
        number = plan.number
        run(plan)
        del plan
    assert [record.operator for record in kernels(session)] == ["add", "double"]
    assert facts.of_plan(number) == ()


def test_facts_may_be_found_out_when_asked_for() -> None:
    asked = []

    def find_out() -> Sequence[Any]:
        asked.append(True)
        return FACTS

    facts.register_plan(-1, find_out)
    assert asked == []
    assert facts.choose(facts.of_plan(-1), -1, 1).operator == "double"
    facts.retire_plan(-1)
    assert facts.choose(facts.of_plan(-1), -1, 0).operator == "plan -1 step 0"


def test_sessions_refuse_what_they_cannot_record() -> None:
    with pytest.raises(ArgumentError, match="no such activity: tpu"):
        profile.session(activities=["tpu"])
    with pytest.raises(ArgumentError, match="activities='cpu' is no list"):
        profile.session(activities="cpu")
    with pytest.raises(ArgumentError, match="is no list"):
        profile.session(exporters=profile.chrome("trace.json"))  # type: ignore[arg-type]
    for interval in (0, -1, "a", True):
        with pytest.raises(ArgumentError, match="sample_interval_ms="):
            profile.session(sample_interval_ms=interval)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="mode='fast'"):
        profile.session(mode="fast")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no exporter"):
        profile.session(exporters=["trace.json"])  # type: ignore[list-item]


def test_session_runs_once_and_marks_only_while_on() -> None:
    with profile.session() as session:
        pass
    with pytest.raises(ProfileError, match="already run"), session:
        pass
    with pytest.raises(ProfileError, match="not on"):
        session.mark("late")


def test_error_of_the_user_ends_the_session_and_is_kept() -> None:
    session = profile.session()

    def fail() -> None:
        with session:
            run(two_step_plan())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert session.recorded == 2
    assert not recorder.recording()
    assert nodes._maker is None


def test_reading_without_a_session_is_an_error() -> None:
    done = forked.run("from tessera import profile; profile.report()", warm=True)
    assert "E_PROFILE: no session has run" in done.stderr


def test_gpus_that_cannot_be_timed_are_a_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "device_source", lambda: CuptiActivity("no_such_cupti"))
    monkeypatch.setattr(gpus, "present", lambda vendor: True)
    with profile.session(activities=["gpu"]) as session:
        pass
    assert "counted, not timed: no_such_cupti is not installed" in session.capability["gpu"]
