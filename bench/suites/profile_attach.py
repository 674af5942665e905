"""What attaching to a running process costs: the time to the first record, and the step time before, meanwhile and
after, in thread CPU time of a program that has never been attached to before.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.environments import environment
from bench.pool import Pool
from bench.results import Figure, SuiteResult

ROOT = Path(__file__).resolve().parents[2]
NAME = "profile-attach"
PROCESSES = 10
READINGS = 10
"""Of the step time, each before, meanwhile and after."""

FIRST_MS = 100.0
CHANGE_PCT = 1.0


class Program:
    """A process of `bench.probes.attach`."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probes.attach"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment("tessera", threads),
        )
        self.pid = self._process.pid
        self.listen_us = float(self._said())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def steps_ns(self) -> float:
        """The thread CPU time of a step, the median of several readings."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        """Has it run steps."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * READINGS)
        self._process.stdin.flush()

    def finish(self) -> float:
        """The median of the readings that `begin` asked for."""
        return statistics.median(float(self._said()) for _ in range(READINGS))


@dataclass(frozen=True)
class Attached:
    """What one process showed. Ratios are to the step time before."""

    listen_us: float
    first_ms: float
    meanwhile: float
    after: float
    untouched: float
    """The later of two readings between which nothing happened, over the earlier."""


def attached(threads: int) -> Attached:
    """Attaches to a fresh process while it runs, and detaches."""
    from tessera.profiling.attach import client

    with Program(threads) as program:
        control = program.steps_ns()
        before = program.steps_ns()
        program.begin()
        begin = time.perf_counter()
        attachment = client.attach(program.pid)
        while (found := attachment.read()) is not None and not len(found.rows):
            pass
        first_ms = 1e3 * (time.perf_counter() - begin)
        meanwhile = program.finish()
        attachment.stop()
        assert attachment.complete
        after = program.steps_ns()
        return Attached(program.listen_us, first_ms, meanwhile / before, after / before, before / control)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    found = []
    for number in range(2 if quick else PROCESSES):
        progress(f"{NAME}, {pool.threads} threads: process {number + 1}")
        found.append(attached(pool.threads))

    def figure(name: str, unit: str, values: list[float], limit: float | None = None) -> Figure:
        note = f"{len(values)} processes, from {min(values):.3g} to {max(values):.3g}"
        return Figure(name, "tessera", pool.threads, unit, statistics.median(values), limit, note=note)

    figures = [
        figure("attach to first record", "ms", [each.first_ms for each in found], FIRST_MS),
        figure("step time, attached", "% more", [100 * (each.meanwhile - 1) for each in found]),
        figure("step time, after detaching", "% more", [100 * (each.after - 1) for each in found], CHANGE_PCT),
        figure("step time, nothing happened", "% more", [100 * (each.untouched - 1) for each in found]),
        figure("to begin to listen", "us", [each.listen_us for each in found]),
    ]
    return SuiteResult(NAME, pool.threads, figures=figures)
