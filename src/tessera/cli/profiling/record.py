"""Recording for `tessera-prof`: attaching to a process, or running a program; then the files, and what was got."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

import polars

from tessera.cli.profiling import export as prof_export
from tessera.errors import ArgumentError, AttachError, ProfileError
from tessera.profiling.attach import client, home
from tessera.profiling.attach.observation import Observation, ObservationRequest
from tessera.profiling.counters.nvidia_metrics import RANGES
from tessera.profiling.export.registry import exporter_to
from tessera.profiling.report import report
from tessera.profiling.sampling import stacks
from tessera.profiling.trace.table import Trace

READ_S: Final = 0.1
"""Seconds between readings: long enough to cost the process nothing, short enough that its ring never overflows."""

_FIRST_READ_S: Final = 0.01
_LOOK_S: Final = 0.5
"""Seconds between looks whether a process has come to listen."""

_NOT_FOUND: Final = 127
_SIGNALLED: Final = 128

ACTIVITIES: Final = {"gpu": ("gpu",), "mem": ("memcpy",), "tc": ("gpu",), "collectives": ("collective",)}
_ALL: Final = ("cpu", "gpu", "memcpy", "collective")
COUNTERS: Final = {"gpu": ("gpu", "power"), "mem": ("memory",), "tc": ("gpu",), "collectives": ()}
COLUMNS: Final = {
    "gpu": ("sm_occupancy", "inst_issue_eff_pct", "warp_divergence_pct", "power_w", "temp_c"),
    "mem": ("dram_read_gbps", "dram_write_gbps", "l2_hit_rate", "mem_stall_pct"),
    "tc": ("tc_util_pct", "alu_util_pct"),
    "collectives": ("collective_type", "collective_bytes"),
}
"""What each domain stands for: activities of a session, activities of counters, and columns of the trace."""


@dataclass(frozen=True)
class Order:
    """What the command line asks for. No `domains` means all."""

    domains: Sequence[str]
    sample_ms: float
    shapes: bool
    stacks: bool
    exports: Sequence[Path]
    summary: Path | None
    duration_s: float | None
    replay: bool = False

    def check(self) -> None:
        """Raises ArgumentError for what cannot be done, before anything runs."""
        for path in self.exports:
            exporter_to(path)
        for path in (*self.exports, *([self.summary] if self.summary is not None else [])):
            if not path.absolute().parent.is_dir():
                raise ArgumentError(f"{path}: there is no folder {path.parent}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ArgumentError(f"--duration {self.duration_s:g}: a positive number of seconds is meant")

    def wishes(self) -> ObservationRequest:
        """The same as the profiler takes it."""
        if self.replay:
            return self._of_replay()
        chosen = self.domains
        return ObservationRequest(
            activities=tuple(dict.fromkeys(("cpu", *(each for name in chosen for each in ACTIVITIES[name]))))
            if chosen
            else _ALL,
            counters=tuple(dict.fromkeys(("cpu", *(each for name in chosen for each in COUNTERS[name]))))
            if chosen
            else None,
            sample_interval_ms=self.sample_ms,
            record_shapes=self.shapes,
            stacks=self.stacks,
        )

    def _of_replay(self) -> ObservationRequest:
        """Without what holds the hardware that replay needs: CUPTI's times of kernels, and sampled counters of GPUs."""
        return ObservationRequest(
            activities=("cpu", "memcpy", "collective"),
            counters=("cpu", "memory", "power"),
            sample_interval_ms=self.sample_ms,
            record_shapes=self.shapes,
            stacks=self.stacks,
        )


def say(text: str) -> None:
    """For people, beside what the program itself prints."""
    print(f"tessera-prof: {text}", file=sys.stderr, flush=True)


def attach(pid: int, order: Order) -> int:
    """Profiles a running process; the exit status."""
    process = client.wanted(pid)
    _say_what_is_missing(order)
    observation = Observation(order.wishes())
    begin = time.monotonic()
    with until_signalled() as stop:
        try:
            listens = _joined(observation, pid)
            observation.sample(pid)
            inside = "attached to" if listens else "sampling from outside, where no Tessera plan listens yet,"
            say(f"{inside} process {pid}; {_ends(order.duration_s)}")
            looked, wait = begin, _FIRST_READ_S
            while process.alive and not stop.wait(_left(begin, wait, order.duration_s)):
                wait = READ_S
                observation.read()
                if not listens and time.monotonic() - looked > _LOOK_S:
                    looked = time.monotonic()
                    listens = _joined(observation, pid)
                if order.duration_s is not None and time.monotonic() - begin >= order.duration_s:
                    break
        finally:
            observation.end()
    if not process.alive:
        say(f"process {pid} has ended; what it recorded until then is kept")
    return _finish(observation, order, time.monotonic() - begin)


def _say_what_is_missing(order: Order) -> None:
    """Says of what was asked for and cannot be had, before anybody waits for it."""
    reason = stacks.unavailable() if order.stacks else None
    if reason is not None:
        say(f"no Python stacks: {reason}")


def _joined(observation: Observation, pid: int) -> bool:
    """Begins a session in a process that listens."""
    try:
        attachment = client.connect(pid)
    except AttachError:
        if client.wanted(pid).alive:
            raise
        return False
    if attachment is None:
        return False
    observation.join(attachment)
    return True


def _ends(duration_s: float | None) -> str:
    return "Ctrl-C ends it" if duration_s is None else f"for {duration_s:g} s"


def _left(begin: float, wait: float, duration_s: float | None) -> float:
    """Seconds to wait for the next reading."""
    if duration_s is None:
        return wait
    return max(0.0, min(wait, begin + duration_s - time.monotonic()))


class Stop:
    """An event that a signal's handler may set: one of `threading` would wait there for the lock that `wait` holds."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()  # its put, alone of all, may interrupt its get

    def set(self) -> None:
        self._asked.put(None)

    def is_set(self) -> bool:
        return not self._asked.empty()

    def wait(self, seconds: float) -> bool:
        """Whether it was set before that time was over."""
        with suppress(Empty):
            self._asked.get(timeout=seconds)
            self.set()
        return self.is_set()


@contextmanager
def until_signalled() -> Iterator[Stop]:
    """What Ctrl-C or SIGTERM sets; a second Ctrl-C ends the command at once."""
    stop = Stop()

    def asked(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(command: Sequence[str], order: Order) -> int:
    """Runs a program and profiles all its processes that run plans; the program's exit status. `duration_s` counts from
    its first kernel on: until then it imports.
    """
    _say_what_is_missing(order)
    observation = Observation(order.wishes())
    begin = time.monotonic()
    first_kernel = math.inf
    with home.Home(observation.join, lambda error: say(error.message)) as place:
        try:
            told = {home.VARIABLE: str(place.path), home.REPLAY: str(int(order.replay))}
            program = subprocess.Popen(command, env={**os.environ, **told})
        except OSError as error:
            say(f"{command[0]} cannot be run: {error.strerror}")
            return _NOT_FOUND
        with _passing_on(program):
            try:
                observation.sample(program.pid)
            except ProfileError as error:
                say(error.message)  # it ended at once
            while _runs(program, READ_S):
                observation.read()
                if observation.ran:
                    first_kernel = min(first_kernel, time.monotonic())
                if order.duration_s is not None and time.monotonic() - first_kernel >= order.duration_s:
                    break
        observation.end()
        ended = time.monotonic()
        with _passing_on(program):
            status = program.wait()  # longer than --duration: the program is not cut short
    _finish(observation, order, ended - begin, ended - first_kernel)
    return status if status >= 0 else _SIGNALLED - status


def _runs(program: subprocess.Popen[bytes], wait_s: float) -> bool:
    try:
        program.wait(wait_s)
    except subprocess.TimeoutExpired:
        return True
    return False


@contextmanager
def _passing_on(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C reaches the program by itself, and its end ends this command; SIGTERM is passed on."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: program.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(observation: Observation, order: Order, seconds: float, since_kernel_s: float = -math.inf) -> int:
    """Writes the files, and says what is in them; the exit status. A program imports for seconds before the first
    kernel, since which `since_kernel_s` have passed.
    """
    trace = observation.trace()
    for reason in observation.lost:
        say(f"{reason}; what it recorded until then is kept")
    counts = dict(trace.events.group_by("kind").len().collect().iter_rows())
    if not counts:
        say("nothing was recorded: the process ran no Tessera plan, and samples were not to be had")
        return 1
    launched, recorded = trace.metadata.get("launched", 0), trace.metadata.get("recorded", 0)
    lasted, samples = _lasted(seconds, since_kernel_s), counts.get("sample", 0)
    say(f"{recorded:,} of {launched:,} kernels and {samples:,} samples in {lasted}")
    for reason, count in trace.metadata.get("dropped_reasons", {}).items():
        if count:
            say(f"{count:,} kernels are not among them: {reason}")
    for path in prof_export.write(trace, order.exports, order.summary):
        say(f"wrote {path}")
    if not order.exports and order.summary is None:
        print(report.of_trace(trace), file=sys.stderr)
    for why, names in _missing(trace, order).items():
        say(f"not measured: {', '.join(names)}: {why}")
    return 0


def _lasted(seconds: float, since_kernel_s: float) -> str:
    if not 0 <= since_kernel_s < seconds - READ_S:
        return f"{seconds:.1f} s"
    return f"{since_kernel_s:.1f} s from the first kernel on, {seconds:.1f} s in all"


def _missing(trace: Trace, order: Order) -> dict[str, list[str]]:
    """Columns that were asked for and are null, by the reason."""
    asked = list(dict.fromkeys(name for domain in order.domains for name in COLUMNS[domain]))
    asked += [name for name in RANGES if order.replay and name not in asked]
    found: dict[str, list[str]] = {}
    if asked:
        nulls = trace.events.select(polars.col(asked).is_null().all()).collect().row(0, named=True)
        for name in (name for name in asked if nulls[name]):
            found.setdefault(trace.capability.get(name, "nothing that ran has it"), []).append(name)
    return found
