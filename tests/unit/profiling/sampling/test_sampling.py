"""The sampling thread: instants, rates, failures, other processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy
import polars
import pytest

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.counters.interfaces import Capability, Field, Polled
from tessera.profiling.sampling import owners, sampling
from tessera.profiling.sampling.samples import annotated, bit_names
from tessera.profiling.sampling.sampling import Sampling
from tessera.profiling.sampling.series import Series
from tessera.profiling.sampling.stacks import folded
from tessera.profiling.trace.table import COLUMNS, frame
from tests import forked


class Scripted:
    """A sampler that gives rows of a script, then is gone."""

    min_interval_ms = 0.0

    def __init__(self, fields: Sequence[Field], rows: Sequence[Sequence[float]]) -> None:
        self.fields = fields
        self._rows = iter(rows)
        self.closed = 0

    def read(self) -> Sequence[float]:
        try:
            return next(self._rows)
        except StopIteration:
            raise ProcessLookupError("the script has ended") from None

    def close(self) -> None:
        self.closed += 1


GAUGE = Field("temp_c", "C", scale=1e-3)
ENERGY = Field("power_w", "W", cumulative=True)


def wait_until(condition: object, sampled: Sampling) -> None:
    limit = time.monotonic() + 60
    while not sampled.ended and time.monotonic() < limit:
        time.sleep(0.002)
    assert sampled.ended, condition


def test_cumulative_fields_become_rates_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([0, 500_000_000, 1_000_000_000])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(instants))
    series = Series("test", Scripted([GAUGE, ENERGY], [(40_000, 10.0), (41_000, 15.0), (42_000, 30.0)]))
    for _ in range(3):
        series.read(0)
    times, samples = series.take()
    assert times.tolist() == [0, 500_000_000, 1_000_000_000]
    assert samples[:, 0].tolist() == [40, 41, 42]
    assert math.isnan(samples[0, 1])
    assert samples[1:, 1].tolist() == [10, 30]


def test_taking_in_parts_gives_the_same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([10**9 * second for second in range(4)])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(instants))
    series = Series("test", Scripted([ENERGY], [(1.0,), (2.0,), (4.0,), (8.0,)]))
    found = []
    for _ in range(4):
        series.read(0)
        found.append(series.take()[1][0, 0])
    assert found[1:] == [1, 2, 4]


def test_a_count_that_begins_anew_gives_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([0, 10**9])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(instants))
    series = Series("test", Scripted([ENERGY], [(100.0,), (1.0,)]))
    series.read(0)
    series.read(0)
    assert numpy.isnan(series.take()[1]).all()


def test_shares_are_of_what_was_counted_and_not_of_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([10**9 * second for second in range(4)])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(instants))
    busy, idle = (Field(name, "%", cumulative=True, share=True, scale=100.0) for name in ("busy", "idle"))
    # 204 ticks of two processors in a second, then 150 of 200, then none.
    series = Series("test", Scripted([busy, idle], [(0, 0), (204, 0), (354, 50), (354, 50)]))
    for _ in range(4):
        series.read(0)
    samples = series.take()[1]
    assert samples[1:3].tolist() == [[100, 0], [75, 25]]
    assert numpy.isnan(samples[[0, 3]]).all()


def test_a_sampler_that_fails_ends_and_its_samples_stay() -> None:
    sampler = Scripted([GAUGE], [(40_000,), (41_000,)])
    with Sampling([("process", sampler)], 1) as sampled:
        wait_until("the script has two rows", sampled)
        assert sampled.subject_ended
    rows = sampled.take()
    assert sampler.closed == 1
    assert sampled.ended == {"temp_c": "the script has ended"}
    assert rows["value"].to_list() == [40, 41]
    assert rows["temp_c"].to_list() == [40, 41]
    assert set(rows["kind"]) == {"sample"}
    assert list(rows.columns) == list(COLUMNS)


def test_a_session_shorter_than_the_interval_has_whole_rates() -> None:
    sampler = Scripted([ENERGY], [(float(count),) for count in range(1000)])
    sampled = Sampling([("test", sampler)], 10_000).begin()
    while sampled.ticks == 0:
        time.sleep(0.001)
    sampled.end()
    assert len(sampled.take()) == 1


def test_slow_samplers_are_read_less_often() -> None:
    slow = Scripted([GAUGE], [(1.0,)] * 1000)
    slow.min_interval_ms = 60_000.0
    quick = Scripted([Field("quick", "")], [(1.0,)] * 100_000)
    sampled = Sampling([("test", slow), ("test", quick)], 1).begin()
    while sampled.ticks < 5:
        time.sleep(0.001)
    sampled.end()
    counts = dict(sampled.take().group_by("kernel_name").len().iter_rows())
    assert counts["temp_c"] == 1
    assert counts["quick"] >= 5


class InFile(Scripted):
    """A sampler of the first number of a file, which native code may read; Python would read something else."""

    def __init__(self, path: Path) -> None:
        super().__init__([Field("quick", "")], [])
        self.file = path.open("rb")
        self.polled = [Polled(self.file.fileno())]


def test_what_native_code_can_read_python_reads_no_more(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("7\n")
    slow = Scripted([GAUGE], [(1.0,)] * 1000)
    slow.min_interval_ms = 60_000.0
    sampled = Sampling([("test", slow), ("test", InFile(tmp_path / "number"))], 1).begin()
    limit = time.monotonic() + 60
    while sampled.ticks < 5 and time.monotonic() < limit:
        time.sleep(0.001)
    before = sampled.take()
    sampled.end()
    rows = polars.concat([before, sampled.take()]).filter(kernel_name="quick")
    assert sampled.ended == {}
    assert len(rows) == sampled.ticks >= 5
    assert set(rows["value"]) == {7}
    assert rows["start_ns"].is_sorted()
    assert sampled.metadata()["spacing_ms"] == {"temp_c": 60_000.0}


def test_python_goes_on_where_native_code_finds_no_number(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("7\n")
    other = Scripted([GAUGE], [(1.0,)] * 100_000)
    sampled = Sampling([("test", InFile(tmp_path / "number")), ("test", other)], 1).begin()
    limit = time.monotonic() + 60
    while sampled.ticks < 3 and time.monotonic() < limit:
        time.sleep(0.001)
    (tmp_path / "number").write_text("\n")
    wait_until("the number is gone", sampled)
    read = sampled.ticks
    while sampled.ticks < read + 3 and time.monotonic() < limit:
        time.sleep(0.001)
    sampled.end()
    assert sampled.ended == {"quick": "the script has ended"}
    counts = dict(sampled.take().group_by("kernel_name").len().iter_rows())
    assert counts["quick"] >= 3
    assert counts["temp_c"] >= counts["quick"] + 3


def test_long_intervals_are_left_to_python(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("7\n")
    with Sampling([("test", InFile(tmp_path / "number"))], 50) as sampled:
        wait_until("Python reads the script", sampled)
    assert sampled.ended == {"quick": "the script has ended"}


def test_a_program_may_end_while_it_is_sampled() -> None:
    program = "from tessera.profiling.sampling.sampling import start; sampled = start(1)\nwhile sampled.ticks < 3: pass"
    assert forked.run(program, warm=True).returncode == 0


def test_deadlines_that_pass_are_counted_not_made_up_for() -> None:
    class Slow(Scripted):
        def read(self) -> Sequence[float]:
            time.sleep(0.03)
            return super().read()

    with Sampling([("test", Slow([GAUGE], [(1.0,)] * 1000))], 10) as sampled:
        while sampled.ticks < 3:
            time.sleep(0.005)
    assert sampled.missed >= 2 * sampled.ticks
    assert sampled.metadata()["missed"] == sampled.missed


@pytest.mark.parametrize("interval", [0.5, 0, -1, math.nan])
def test_intervals_that_would_cost_too_much_are_refused(interval: float) -> None:
    with pytest.raises(ArgumentError, match="sample_interval_ms"):
        sampling.start(interval)


def test_this_process_is_sampled() -> None:
    zero = time.monotonic_ns()
    with sampling.start(5, activities=["cpu"]) as sampled:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
    with pytest.raises(ProfileError, match="already"):
        sampled.begin()
    rows = sampled.take(zero)
    assert sampled.take().is_empty()
    assert {"cpu_pct", "rss_bytes"} <= set(rows["kernel_name"])
    assert rows["start_ns"].is_sorted()
    assert rows["start_ns"].min() >= 0  # type: ignore[operator]
    assert rows.filter(polars.col("kernel_name") == "cpu_pct")["value"].max() > 1  # type: ignore[operator]
    assert "pss_bytes" not in set(rows["kernel_name"])


def test_another_process_is_sampled_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    sampled = sampling.sample_process(child.pid, interval_ms=2, activities=["memory"])
    while sampled.ticks < 3:
        time.sleep(0.002)
    child.communicate()
    limit = time.monotonic() + 60
    while "cpu_pct" not in sampled.ended and time.monotonic() < limit:
        time.sleep(0.002)
    sampled.end()
    rows = sampled.take()
    assert "cpu_pct" in sampled.ended
    assert sampled.subject_ended
    assert rows.filter(polars.col("kernel_name") == "rss_bytes")["value"].max() > 1e6  # type: ignore[operator]


def test_a_process_that_nobody_has_waited_for_has_ended_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampled = sampling.sample_process(child.pid, interval_ms=2, activities=["cpu"])
    assert child.stdin is not None
    child.stdin.close()  # it ends, and stays a zombie until the wait below
    limit = time.monotonic() + 60
    while not sampled.subject_ended and time.monotonic() < limit:
        time.sleep(0.002)
    sampled.end()
    assert sampled.ended["cpu_pct"] == "the process has ended"
    child.wait()


def test_a_field_is_refused_where_no_backend_gives_it() -> None:
    missing, there = Capability("W", "no sensor", "buy one"), Capability("W")
    told = {"a": {"power_w": missing, "temp_c": missing}, "b": {"power_w": there, "temp_c": Capability("C", "broken")}}
    assert sampling._refusals(told) == {"temp_c": "a: no sensor; buy one | b: broken"}


def test_devices_that_are_not_here_are_no_reason_where_there_is_another() -> None:
    absent, broken = Capability("W", "no GPU is here", absent=True), Capability("W", "broken", "mend it")
    told = {
        "a": {"power_w": absent, "sm_occupancy": absent},
        "b": {"power_w": broken, "sm_occupancy": absent, "gpu_util_pct": Capability("%", "no other", absent=True)},
    }
    told["a"] |= {"gpu_util_pct": absent, "dram_read_gbps": absent}
    assert sampling._refusals(told) == {
        "power_w": "b: broken; mend it",
        "sm_occupancy": "no GPU is here",
        "gpu_util_pct": "no GPU that has it is here",
    }


def test_a_process_that_is_not_there_is_refused() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProfileError, match=f"no process {child.pid}"):
        sampling.sample_process(child.pid)


def test_the_process_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "owner_of", lambda pid: 1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(ProfileError, match="belongs to user 1000"):
        sampling.sample_process(1)


def test_the_names_of_a_mask() -> None:
    bits = {0: "power", 3: "thermal"}
    assert bit_names(0b1001, bits) == "power+thermal"
    assert bit_names(0b0110, bits) == "none"


def test_kernels_take_the_state_of_their_device_and_counters_only_where_they_lasted_long_enough() -> None:
    kernels = frame(
        {
            "kind": ["kernel"] * 3,
            "start_ns": [0, 15, 60],
            "dur_ns": [12, 2, 10],
            "device": ["cpu", "cpu", "cuda:0"],
            "tc_util_pct": [None, None, 7.0],
        }
    )
    samples = frame(
        {
            "kind": ["sample"] * 4,
            "start_ns": [10, 20, 20, 100],
            "device": ["cpu", "cpu", "cuda:0", "cuda:0"],
            "power_w": [50.0, 60.0, None, 300.0],
            "tc_util_pct": [30.0, 40.0, None, 90.0],
        }
    )
    found = annotated(kernels, samples)
    assert found["power_w"].to_list() == [60, 60, 300]
    assert found["tc_util_pct"].to_list() == [40, None, 7]
    assert found["start_ns"].to_list() == [0, 15, 60]


def test_stacks_are_the_times_between_events_of_a_thread() -> None:
    events: list[dict[str, object]] = [
        {"ph": "B", "tid": 1, "ts": 0.0, "name": "main"},
        {"ph": "B", "tid": 1, "ts": 2.0, "name": "step"},
        {"ph": "E", "tid": 1, "ts": 5.0, "name": "step"},
        {"ph": "E", "tid": 1, "ts": 6.0, "name": "main"},
    ]
    assert folded(events) == [(0, 2000, 1, "main"), (2000, 3000, 1, "main;step"), (5000, 1000, 1, "main")]


def test_threads_of_a_foreign_process_that_end_keep_their_switches(tmp_path: Path) -> None:
    from tessera.profiling.counters.backends.process import SwitchesSampler

    def thread(name: str, voluntary: int, involuntary: int) -> None:
        (tmp_path / "task" / name).mkdir(parents=True, exist_ok=True)
        text = f"Name:\tx\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
        (tmp_path / "task" / name / "status").write_text(text)

    thread("1", 10, 1)
    thread("2", 5, 2)
    sampler = SwitchesSampler(tmp_path)
    assert list(sampler.read()) == [15, 3]
    (tmp_path / "task" / "2" / "status").unlink()
    thread("1", 12, 1)
    assert list(sampler.read()) == [17, 3]


def test_a_fork_ends_the_sampling_and_reads_no_more() -> None:
    sampler = Scripted([ENERGY], [(float(count),) for count in range(100_000)])
    sampled = Sampling([("test", sampler)], 1).begin()
    while sampled.ticks < 4:  # of readings that lie too near one is left out
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a lock that nobody frees would hang here
        before = len(sampled._series[0].take()[0])
        sampled.end()
        read = len(sampled._series[0].take()[0])
        faults = (before < 3, read != 0, sampler.closed != 1, sampled.cpu_s is not None)
        os._exit(sum(fault << place for place, fault in enumerate(faults)))
    sampled.end()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sampled.cpu_s is not None
    assert len(sampled.take()) >= 3


def test_a_fork_does_not_wait_for_native_code_that_was_reading() -> None:
    sampled = sampling.start(1, activities=["cpu"])
    assert sampled._polling is not None
    while sampled.ticks < 3:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        sampled._polling._plan[0] = 1  # as where the fork catches the loop between two files
        sampled.end()
        os._exit(0 if len(sampled._polled[0].take()[0]) >= 3 else 1)
    sampled.end()
    assert os.waitpid(child, 0)[1] == 0
    assert len(sampled.take()) >= 3


@pytest.mark.parametrize("interval", [10.0, 60_000.0])
def test_ending_does_not_wait_for_the_interval_and_leaves_no_thread(interval: float) -> None:
    sampled = Sampling([("test", Scripted([GAUGE], [(1.0,)] * 1000))], interval).begin()
    while sampled.ticks == 0:
        time.sleep(0.001)
    sampled.end()
    sampled.end()
    limit = time.monotonic() + 60
    while any(thread.name == "tessera-sampling" for thread in threading.enumerate()) and time.monotonic() < limit:
        time.sleep(0.005)
    assert not any(thread.name == "tessera-sampling" for thread in threading.enumerate())


def test_readings_that_lie_together_have_one_rate() -> None:
    """The system counts processor time by its clock's ticks: soon after a reading it may be a tick more."""
    series = Series(
        "test", Scripted([Field("cpu_pct", "%", cumulative=True, scale=100e-9)], []), interval_ns=10_000_000
    )
    milliseconds = numpy.array([0, 10, 20, 20.3, 30])
    spent = numpy.array([[0.0], [10e6], [17e6], [20e6], [30e6]])
    series.extend((milliseconds * 1e6).astype(numpy.int64), spent)
    times, rates = series.take()
    assert (times / 1e6).tolist() == [0, 10, 20.3, 30]
    assert rates[1:, 0] == pytest.approx([100, 1e3 / 10.3, 1e3 / 9.7])
    series.extend(numpy.array([30_200_000, 40_000_000]), numpy.array([[31e6], [40e6]]))
    times, rates = series.take()
    assert (times / 1e6).tolist() == [40]
    assert rates[0, 0] == pytest.approx(100)
