"""Kernels of GPUs timed by a stand-in of `cupti-python`: from the plan's launches to rows of a trace."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tessera import dtypes, profile
from tessera.errors import LibraryError
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.profiling.counters import gpus
from tessera.profiling.counters.cupti_activity import CuptiActivity
from tessera.profiling.recording.device_kernels import RunCollection, SourceReport, TimedKernel
from tessera.profiling.session import sessions
from tessera.system.distribution import installing
from tests.unit.runtime.devices.fake import FakeDriver
from tests.unit.runtime.plans.test_device_plan import leaf, plan


class CuptiError(Exception):
    """As `cupti.cuptiError`."""


class Kind(IntEnum):
    MEMCPY = 1
    CONCURRENT_KERNEL = 10
    EXTERNAL_CORRELATION = 39


class Copy(IntEnum):
    HTOD = 1
    DTOH = 2
    ATOA = 5


class Cupti(ModuleType):
    """`cupti.cupti`, on which every launch of a plan runs two kernels of 1000 ns; `lost` of them are not told."""

    cuptiError = CuptiError  # noqa: N815 - the binding's name
    ActivityKind = Kind
    ActivityMemcpyKind = Copy
    ExternalCorrelationKind = SimpleNamespace(CUSTOM0=3)
    driver_api_trace_cbid = SimpleNamespace(cuLaunchKernel=307, cuLaunchKernel_ptsz=442, cuGraphLaunch=514)

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.enabled: set[int] = set()
        self.calls: set[int] = set()
        self.pushed = threading.local()
        self.waiting: list[Any] = []
        self.correlation = 0
        self.lost = 0
        self.refuses = False
        self.completed: Callable[[Sequence[Any]], None] = lambda activities: None

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[Sequence[Any]], None]
    ) -> None:
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        if self.refuses:
            raise CuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_enable_driver_api(self, call: int, enable: int) -> None:
        (self.calls.add if enable else self.calls.discard)(call)

    def get_timestamp(self) -> int:
        return time.time_ns()

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        assert kind == 3
        self.pushed.number = number
        for name in ("first", "second"):
            self.run(name, number)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        return int(self.pushed.number)

    def run(self, name: str, number: int) -> None:
        self.correlation += 1
        start = time.time_ns()
        self.waiting.append(
            SimpleNamespace(kind=Kind.EXTERNAL_CORRELATION, correlation_id=self.correlation, external_id=number)
        )
        self.waiting.append(
            SimpleNamespace(
                kind=Kind.CONCURRENT_KERNEL,
                correlation_id=self.correlation,
                start=start,
                end=start + 1000,
                device_id=0,
                name=name,
            )
        )

    def activity_flush_all(self, flag: int) -> None:
        told, self.waiting = self.waiting[: len(self.waiting) - self.lost], []
        self.completed(told)


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cupti]:
    fake = Cupti()
    monkeypatch.setitem(sys.modules, "fake_cupti", fake)
    monkeypatch.setattr(sessions, "device_source", lambda: CuptiActivity("fake_cupti"))
    yield fake
    assert fake.enabled == set()
    assert fake.calls == set()


def run(times: int) -> None:
    made = plan(FakeDriver())
    for _ in range(times):
        made.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])


def test_kernels_of_a_plan_have_the_devices_times_and_the_compilers_facts(cupti: Cupti) -> None:
    with profile.session(activities=["gpu"]) as session, profile.region("forward"):
        run(3)
    kernels = [record for record in session.records() if record.kind == "kernel"]
    assert [record.operator for record in kernels] == ["exp", "add"] * 3
    assert {record.kernel_name for record in kernels} == {"first", "second"}
    assert [record.duration_us for record in kernels] == [pytest.approx(1)] * 6
    assert {record.region for record in kernels} == {"forward"}
    assert (session.launched, session.recorded, session.dropped) == (6, 6, 0)
    assert session.unmeasured == {}
    assert "gpu" not in session.capability
    trace = session.trace().events.collect()
    assert set(trace.filter(trace["kind"] == "kernel")["device"]) == {"cuda:0"}
    assert set(trace.filter(trace["kind"] == "region")["device"]) == {"cpu"}


def test_a_run_that_is_not_told_whole_stays_unmeasured(cupti: Cupti) -> None:
    cupti.lost = 1
    with profile.session(activities=["gpu"]) as session:
        run(3)
    assert (session.launched, session.recorded, session.unmeasured) == (6, 4, {"cuda:0": 2})


def test_sessions_have_what_was_launched_while_they_were_on(cupti: Cupti) -> None:
    with profile.session(activities=["gpu"]) as outer:
        run(1)
        with profile.session(activities=["gpu"]) as inner:
            run(2)
        assert cupti.enabled
        run(1)
    assert (inner.launched, inner.recorded) == (4, 4)
    assert (outer.launched, outer.recorded) == (8, 8)


def test_a_session_without_gpu_counts_and_times_nothing(cupti: Cupti) -> None:
    with profile.session() as session:
        run(1)
    assert session.unmeasured == {"cuda:0": 2}
    assert cupti.correlation == 0


def test_copies_are_those_of_the_device(cupti: Cupti) -> None:
    with profile.session(activities=["gpu", "memcpy"]) as session:
        at = time.time_ns() + 1000
        common = {"kind": Kind.MEMCPY, "start": at, "end": at + 500, "device_id": 0, "bytes": 1000}
        cupti.waiting += [SimpleNamespace(**common, copy_kind=1), SimpleNamespace(**common, copy_kind=5)]
    (copy,) = [record for record in session.records() if record.kind == "memcpy"]
    assert (copy.memcpy_dir, copy.bytes) == ("h2d", 1000)
    assert copy.memcpy_gbps == pytest.approx(2)


def test_what_holds_cupti_is_a_capability(cupti: Cupti) -> None:
    cupti.refuses = True
    with profile.session(activities=["gpu"]) as session:
        run(1)
    assert "MULTIPLE_SUBSCRIBERS" in session.capability["gpu"]
    assert "end other profilers" in session.capability["gpu"]
    assert session.unmeasured == {"cuda:0": 2}


def test_a_machine_without_a_driver_is_a_capability(cupti: Cupti, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*callbacks: object) -> None:
        raise RuntimeError("CUDA driver is not found")

    monkeypatch.setattr(cupti, "activity_register_callbacks", missing)
    with profile.session(activities=["gpu"]) as session:
        run(1)
    assert "CUDA driver is not found; install the NVIDIA driver" in session.capability["gpu"]


def test_without_a_gpu_there_is_nothing_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "present", lambda vendor: False)
    with pytest.raises(LibraryError, match="no NVIDIA GPU is here"):
        CuptiActivity("no_such_cupti")


def test_without_the_binding_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "present", lambda vendor: True)
    with pytest.raises(LibraryError, match="not installed") as failure:
        CuptiActivity("no_such_cupti")
    assert installing("nvidia") in str(failure.value)


class Slow:
    """A source that tells a run's kernels in two parts."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.parts: list[SourceReport] = []

    def begin(self) -> None:
        """Nothing to start."""

    def end(self) -> None:
        """Nothing to end."""

    def push(self, number: int) -> None:
        self.numbers.append(number)

    def pop(self) -> None:
        """Nothing to end."""

    def told(self) -> SourceReport:
        return self.parts.pop(0)


def test_kernels_told_late_are_waited_for_once() -> None:
    source = Slow()
    collection = RunCollection(source)
    for _ in range(2):
        collection.enter(5, 2, "cuda:1").leave()
    first, second = source.numbers
    kernels = [TimedKernel(index, 100 - index, 200, 1, "k") for index in range(4)]
    source.parts = [
        SourceReport([kernels[0]], [], {0: first}),
        SourceReport([kernels[1], kernels[2]], [], {1: first, 2: second}),
        SourceReport([kernels[3]], [], {3: second}),
    ]
    assert collection.take() == ([], [])
    ((measured,), _) = collection.take()
    assert measured.rows[:, 1].tolist() == [99, 100]  # steps in the order of their starts
    assert measured.rows[:, 4].tolist() == [0, 1]
    assert measured.rows[:, 7].tolist() == [2, 2]
    assert collection.take() == ([], [])
