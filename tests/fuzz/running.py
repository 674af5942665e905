"""Checking programs in processes of their own: crashes and hangs are findings like others, and memory stays bounded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fuzz.program import Program
from tests.fuzz.ways import WAYS

LIMIT_S = 120.0
"""Seconds after which a program hangs; the stacks of its threads are written down five seconds earlier."""
PROGRAMS_PER_PROCESS = 150
SHARE = 36
"""Seeds that `make test` checks, results and gradients of each: so many that each pattern begins a program
(`Growth.begin`).
"""
CACHE_BYTES = 300 << 20

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What became of one program. `verdict`: "fine", "wrong", "error", "crash", "hang", or "none" where it has no
    gradients.
    """

    verdict: str
    text: str = ""
    name: str = ""
    program: Program | None = None
    operators: tuple[str, ...] = ()
    way: str = ""
    judged: int = 0
    elements: int = 0

    @property
    def is_finding(self) -> bool:
        """Whether something is wrong."""
        return self.verdict not in ("fine", "none")

    def resembles(self, other: Outcome) -> bool:
        """Whether the same seems to be wrong."""
        return self.verdict == other.verdict and self.name == other.name


class Checker:
    """A worker, begun anew when it has ended or has had its share. Its caches are temporary and bounded. It runs the
    `sources` in a folder, those of this checkout by default.
    """

    def __init__(self, sources: Path = _ROOT / "src") -> None:
        self._sources = sources
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-fuzz-")
        self._process: subprocess.Popen[str] | None = None
        self._said = Path(self._folder.name) / "stacks"
        self._answered = 0

    def __enter__(self) -> Checker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def seed(self, seed: int, gradients: bool = False, ways: Sequence[str] = (), second: bool = True) -> Outcome:
        """Checks the program of a seed: its results in all ways or in those named, or its gradients, to second order or
        only to first.
        """
        return self._ask({"seed": seed, "gradients": gradients, "ways": list(ways), "second": second})

    def program(self, program: Program, seed: int, gradients: bool = False, way: str = "") -> Outcome:
        """Checks a program, as that of the seed was; in one way alone, where one is named."""
        ways = [way] if way else []
        return self._ask({"seed": seed, "gradients": gradients, "program": program.to_json(), "ways": ways})

    def _ask(self, request: dict[str, Any]) -> Outcome:
        if self._answered >= PROGRAMS_PER_PROCESS:
            self._end()
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(LIMIT_S, end)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        self._answered += 1
        if line:
            return _outcome(json.loads(line))
        status = process.wait()
        self._end()
        if overdue.is_set():
            return Outcome("hang", f"no answer within {LIMIT_S:.0f} s\n{self._last_words()}")
        return Outcome("crash", f"the process ended with status {status}\n{self._last_words()}")

    def _last_words(self) -> str:
        """The stacks that the process wrote down, the innermost frames of each."""
        return "".join(self._said.read_text(errors="replace").splitlines(keepends=True)[:25])

    def _begin(self) -> subprocess.Popen[str]:
        cache = Path(self._folder.name) / "cache"
        if cache.exists() and sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) > CACHE_BYTES:
            shutil.rmtree(cache)
        environment = {**os.environ, "TESSERA_CACHE_DIR": str(cache), "TESSERA_TUNE_SHIPPED": "0"}
        environment["TESSERA_CORE_FACTS"] = "0"
        environment["PYTHONPATH"] = str(self._sources)
        self._answered = 0
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker", str(LIMIT_S - 5)],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _outcome(told: dict[str, Any]) -> Outcome:
    return Outcome(
        told["verdict"],
        told.get("text", ""),
        told.get("name", ""),
        Program.from_json(told["program"]),
        tuple(told["operators"]),
        told.get("way", ""),
        told.get("judged", 0),
        told.get("elements", 0),
    )


@dataclass
class Tally:
    """What a run has checked."""

    programs: int = 0
    without_gradients: int = 0
    judged: int = 0
    elements: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Outcome]] = field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        """Counts one program."""
        self.programs += outcome.verdict != "none"
        self.without_gradients += outcome.verdict == "none"
        self.judged += outcome.judged
        self.elements += outcome.elements
        self.operators.update(outcome.operators)
        if outcome.is_finding:
            self.findings.append((seed, outcome))

    def __str__(self) -> str:
        share = self.judged / self.elements if self.elements else 1.0
        least = ", ".join(f"{name} {count}" for name, count in self.operators.most_common()[:-6:-1])
        lacking = f", {self.without_gradients} without gradients" if self.without_gradients else ""
        return (
            f"{self.programs} programs{lacking}, {len(self.operators)} operators (rarest: {least}), "
            f"{share:.1%} of {self.elements} elements judged, {len(self.findings)} findings"
        )


def run(checker: Checker, seeds: Iterable[int], gradients: bool = False, share: int = 1) -> Tally:
    """Checks the programs of some seeds. Of the ways but the first, and of the gradients of gradients, each program
    takes one of `share`, which another seed has another one of.
    """
    first, *others = WAYS
    tally = Tally()
    for seed in seeds:
        turn = seed // 4 + seed  # patterns come by fours
        ways = [first, *(way for place, way in enumerate(others) if (place + turn) % share == 0)]
        tally.add(seed, checker.seed(seed, gradients, ways, turn % share == 0))
    return tally
