"""Counters of every kernel by replay: which launches are counted, what sessions get, and what failures do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from tessera import dtypes, profile
from tessera.errors import LibraryError
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.profiling.attach.increments import Increment, Taker, recording_of
from tessera.profiling.counters.nvidia_metrics import RANGES
from tessera.profiling.session import replay
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.replay import DURATION_NS, Replay
from tessera.profiling.session.sessions import Session
from tessera.profiling.trace.conversion import records_of
from tessera.runtime.plans.gpu_plan import DevicePlan
from tests.unit.runtime.devices.fake import FakeDriver
from tests.unit.runtime.plans.test_device_plan import leaf, plan

TOLD = [
    {"sm_occupancy": 0.5, "l2_hit_rate": 0.25, DURATION_NS: 3000.0},
    {"sm_occupancy": 0.75, "l2_hit_rate": 0.125, DURATION_NS: 1500.0},
]


class Counting:
    """Tells `TOLD` of the kernels of each run; fails with `error`, before it runs anything or `after`."""

    def __init__(self, error: LibraryError | None = None, after: bool = False) -> None:
        self.error, self.after = error, after
        self.asked: list[tuple[int, int]] = []

    def __call__(self, launch: Callable[[], object], kernels: int, device: int) -> Sequence[Mapping[str, float]]:
        self.asked.append((kernels, device))
        if self.error is not None and not self.after:
            raise self.error
        launch()
        if self.error is not None:
            raise self.error
        return TOLD


def counted_by(monkeypatch: pytest.MonkeyPatch, counting: Counting) -> Counting:
    monkeypatch.setattr(replay, "current", Replay(counting))
    return counting


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def run(made: DevicePlan, times: int = 1) -> None:
    for _ in range(times):
        made.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])


def launches(driver: FakeDriver) -> list[str]:
    return [entry[1] if entry[0] == "launch" else entry[0] for entry in driver.log]


def test_every_kernel_has_what_was_counted_of_it(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counting = counted_by(monkeypatch, Counting())
    with profile.session() as session:
        run(plan(driver), times=3)
    assert counting.asked == [(2, 0)] * 3
    assert launches(driver) == ["first", "second", "synchronize"] * 3  # never as a graph
    records = [record for record in session.records() if record.kind == "kernel"]
    assert [(each.operator, each.device) for each in records] == [("exp", "cuda:0"), ("add", "cuda:0")] * 3
    assert [each.duration_us for each in records] == pytest.approx([3.0, 1.5] * 3)
    assert [each.sm_occupancy for each in records] == [0.5, 0.75] * 3
    assert [each.l2_hit_rate for each in records] == [0.25, 0.125] * 3
    assert session.launched == session.recorded == 6
    assert session.unmeasured == {}


def test_a_kernel_begins_when_the_one_before_it_ends(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counted_by(monkeypatch, Counting())
    with profile.session() as session:
        run(plan(driver))
    first, second = session.records()
    assert second.start_us == pytest.approx(first.end_us)


def test_without_counters_kernels_run_once_and_sessions_are_told_why(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver
) -> None:
    counting = counted_by(monkeypatch, Counting(LibraryError("no right to count", hints=["be root"])))
    made = plan(driver)
    with profile.session() as session:
        run(made, times=2)
    assert counting.asked == [(2, 0)]  # it is not tried again
    assert launches(driver) == ["first", "second", "synchronize", "first", "second"]
    assert session.unmeasured == {"cuda:0": 4}
    assert session.launched == session.recorded + session.dropped == 4
    assert {session.trace().capability[name] for name in RANGES} == {
        "not counted by replay: no right to count; be root"
    }


def test_a_run_that_cannot_be_told_is_not_repeated_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver
) -> None:
    counting = counted_by(monkeypatch, Counting(LibraryError("3 kernels ran where 2 were to be counted"), after=True))
    made = plan(driver)
    with profile.session() as session:
        run(made)
        counting.error = None
        run(made)
    assert launches(driver) == ["first", "second", "synchronize"] * 2
    assert (session.recorded, session.unmeasured) == (2, {"cuda:0": 2})


def test_what_no_gpu_runs_is_launched_as_always(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counting = counted_by(monkeypatch, Counting())
    driver.name = "interpreter"
    run(plan(driver))
    assert counting.asked == []
    assert "synchronize" not in launches(driver)


def test_what_a_program_captures_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counting = counted_by(monkeypatch, Counting())
    driver.capturing = True
    run(plan(driver))
    assert counting.asked == []
    assert launches(driver) == ["first", "second"]


def test_an_error_of_the_launch_reaches_the_program(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counted_by(monkeypatch, Counting())

    def failing(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(driver, "launch", failing)
    with pytest.raises(RuntimeError, match="planted"):
        run(plan(driver))


def test_counters_leave_the_process_with_their_kernels(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counted_by(monkeypatch, Counting())
    session = Session(SessionOptions(), observer=True)
    with session:
        taker = Taker(session)
        made = plan(driver)
        run(made)
        parts = [taker.take()]
        run(made)
        parts.append(taker.take())
    sent = [Increment.unpack(*part.pack()) for part in parts]
    plans = {str(number): told for part in sent for number, told in part.rest["plans"].items()}
    received = recording_of(sent, plans, SessionOptions())
    assert [record.l2_hit_rate for record in records_of(received)] == [0.25, 0.125] * 2
    assert session.recording.counted == []


def test_a_summary_holds_no_counters(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    counted_by(monkeypatch, Counting())
    with profile.session(mode="summary") as session:
        run(plan(driver))
    assert session.recording.counted == []
    assert session.recorded == 2
