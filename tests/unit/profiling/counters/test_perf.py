"""`perf_event_open`: the structure, groups, processes, scaling, and what refusals mean."""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.counters import perf_event
from tessera.profiling.counters.backends.perf import PerfBackend
from tessera.profiling.counters.interfaces import Subject
from tessera.profiling.counters.perf_event import SOFTWARE, EventGroup, PerfEvent, ProcessEvents, scaled

TASK_CLOCK = PerfEvent("task_clock", SOFTWARE, 1)
PAGE_FAULTS = PerfEvent("page_faults", SOFTWARE, 2)

counted = pytest.mark.skipif(
    perf_event.refusal(PAGE_FAULTS, 0) is not None, reason=f"no perf: {perf_event.refusal(PAGE_FAULTS, 0)}"
)


def touch_pages(count: int) -> None:
    with mmap.mmap(-1, count * mmap.PAGESIZE) as memory:
        for page in range(count):
            memory[page * mmap.PAGESIZE] = 1


def test_the_attributes_have_the_size_and_the_places_of_the_kernels_header() -> None:
    attributes = perf_event.EventAttributes
    assert ctypes.sizeof(attributes) == 112
    places = {"config": 8, "read_format": 32, "flags": 40, "config1": 56, "clockid": 92, "sample_max_stack": 108}
    assert {name: getattr(attributes, name).offset for name in places} == places


@counted
def test_a_group_counts_the_page_faults_of_its_thread() -> None:
    with EventGroup([TASK_CLOCK, PAGE_FAULTS]) as group:
        before = group.read()
        touch_pages(64)
        after = group.read()
    assert 64 <= after[1] - before[1] < 256
    assert after[0] > before[0]


@counted
def test_a_process_counts_threads_that_start_later() -> None:
    with ProcessEvents([PAGE_FAULTS], Subject().pid) as counts:
        before = counts.read()
        worker = threading.Thread(target=touch_pages, args=(64,))
        worker.start()
        worker.join()
        after = counts.read()
    assert after[0] - before[0] >= 64


def test_an_event_that_nobody_knows_is_refused_with_a_reason() -> None:
    unknown = PerfEvent("unknown", SOFTWARE, 12345)
    with pytest.raises(OSError):
        EventGroup([unknown])
    reason, _ = perf_event.refusal(unknown, 0) or ("", "")
    assert "counter" in reason or "perf_event" in reason


@counted
def test_a_refused_member_leaves_no_descriptor_open() -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError):
        EventGroup([PAGE_FAULTS, PerfEvent("unknown", SOFTWARE, 12345)])
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@given(value=st.integers(0, 2**48), running=st.integers(1, 2**40), idle=st.integers(0, 2**40))
def test_a_shared_counter_is_extrapolated_to_the_whole_time(value: int, running: int, idle: int) -> None:
    found = scaled(value, running + idle, running)
    assert found >= value or math.isclose(found, value)
    assert math.isclose(found * running, value * (running + idle))


def test_a_counter_that_never_ran_gives_no_number() -> None:
    assert math.isnan(scaled(0, 100, 0))
    assert scaled(0, 0, 0) == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "perf_event_paranoid is 3"),
        (errno.EPERM, "perf_event_paranoid is 3"),
        (errno.ENOENT, "no such counter"),
        (errno.EOPNOTSUPP, "no such counter"),
        (errno.ENOSYS, "no perf_event_open"),
        (errno.EMFILE, "open files"),
        (errno.ESRCH, "ended"),
    ],
)
def test_a_refusal_is_explained(code: int, words: str, tmp_path: Path) -> None:
    paranoid = tmp_path / "perf_event_paranoid"
    paranoid.write_text("3\n")
    reason, remedy = perf_event.explain(OSError(code, "refused"), paranoid)
    assert words in reason
    if code in (errno.EACCES, errno.EPERM):
        assert "sysctl kernel.perf_event_paranoid=1" in remedy
        assert "CAP_PERFMON" in remedy


def test_refused_events_are_capabilities_and_not_sampled() -> None:
    backend = PerfBackend(events=(PerfEvent("unknown", SOFTWARE, 12345),))
    assert not backend.capabilities(Subject())["unknown"].available
    assert backend.open(Subject()) == []


@counted
def test_the_backend_samples_what_it_says_is_available() -> None:
    backend, subject = PerfBackend(), Subject()
    available = [name for name, each in backend.capabilities(subject).items() if each.available]
    (sampler,) = backend.open(subject)
    try:
        assert [field.name for field in sampler.fields] == available
        first = dict(zip(available, sampler.read(), strict=True))
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        second = dict(zip(available, sampler.read(), strict=True))
    finally:
        sampler.close()
    assert second["task_clock"] - first["task_clock"] >= 0.02e9
