"""Measured traffic: lines become bytes of one run; what cannot be counted is a capability."""

from __future__ import annotations

import mmap

import pytest

from tessera.profiling.counters import perf_event, traffic
from tessera.profiling.counters.perf_event import SOFTWARE, PerfEvent

FAULTS = PerfEvent("page_faults", SOFTWARE, 2)
UNKNOWN = PerfEvent("unknown", SOFTWARE, 12345)


def touch() -> None:
    with mmap.mmap(-1, 32 * mmap.PAGESIZE) as memory:
        for page in range(32):
            memory[page * mmap.PAGESIZE] = 1


@pytest.mark.skipif(perf_event.refusal(FAULTS, 0) is not None, reason=f"no perf: {perf_event.refusal(FAULTS, 0)}")
def test_events_of_one_run_are_lines() -> None:
    # Page faults stand for misses: this machine's counters may be hidden, the arithmetic is the same.
    found = traffic.measured(touch, repeats=4, levels={"DRAM": (FAULTS, FAULTS), "L3": (UNKNOWN,)})
    assert 2 * 32 * 64 <= found.nbytes["DRAM"] < 2 * 64 * 64
    assert "L3" not in found.nbytes
    assert not found.capability["L3"].available


def test_every_level_is_measured_or_has_a_reason() -> None:
    found = traffic.measured(touch, repeats=2)
    assert found.nbytes.keys() | found.capability.keys() == traffic.LEVELS.keys()
    assert not found.nbytes.keys() & found.capability.keys()


def test_without_counters_nothing_runs() -> None:
    calls: list[int] = []
    found = traffic.measured(lambda: calls.append(1), levels={"DRAM": (UNKNOWN,)})
    assert (found.nbytes, calls) == ({}, [])
