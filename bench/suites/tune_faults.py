"""What faulty candidates cost: each must end as a labelled trial, soon after the limit, and harm nothing that follows;
and what a tuning loses that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pool import Pool
from bench.probes.fault_kernels import FAULTS, Fault, case, doubling, scale
from bench.results import Figure, SuiteResult
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import FINAL, SCREEN, SubprocessMeasurer
from tessera.tuning.measure.trial import Trial

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1.0
"""What a candidate gets for a run, where the fault is to outlast that."""
PATIENCE_S = 60.0
"""What it gets where it ends by itself: no busy machine may turn a crash into a timeout."""
BEYOND_S = 5.0
"""The most that a fault may cost beyond that."""
RESUME_PERCENT = 2.0
VICTIM = "bench.probes.tune_victim"
TRIALS = 12
KILLED_AFTER = (1, 5, 9)


@dataclass(frozen=True)
class Injected:
    """What became of a fault: its trial, whether the candidates around it were right, and the seconds that it cost."""

    fault: Fault
    trial: Trial
    healthy: bool
    seconds: float

    @property
    def is_contained(self) -> bool:
        """Whether it was labelled for what it is, and harmed nothing."""
        return self.healthy and self.trial.outcome in self.fault.outcomes

    @property
    def beyond_s(self) -> float:
        """What it cost beyond the limit, where waiting for that was to be done."""
        return self.seconds - LIMIT_S * self.fault.waits


def inject(fault: Fault, measurer: SubprocessMeasurer, limit_s: float = LIMIT_S) -> Injected:
    """Has a fault measured between two right candidates, as a tuning does: screened, then among the finalists. A fault
    that is to outlast its limit gets `limit_s`.
    """
    workload = doubling(limit_s=limit_s if fault.waits else PATIENCE_S)
    right = case(workload, scale())
    cases = [
        (Schedule(before=1), right),
        (Schedule(fault=fault.name), fault.make(workload)),
        (Schedule(after=1), right),
    ]
    begin = time.monotonic()
    trials = measurer.measure(cases, SCREEN)
    if trials[1].outcome == "ok":
        trials = measurer.measure(cases, FINAL)
    seconds = time.monotonic() - begin
    return Injected(fault, trials[1], trials[0].outcome == trials[2].outcome == "ok", seconds)


def faults(progress: Callable[[str], None], chosen: Sequence[Fault], threads: int) -> Iterator[Figure]:
    """The seconds that each fault cost beyond the limit, and how many were contained."""
    measurer = SubprocessMeasurer()
    contained = 0
    try:
        # The worker starts once for a program, not for a fault.
        measurer.measure([(Schedule(), case(doubling(), scale()))], SCREEN)
        for fault in chosen:
            progress(f"tune-faults: {fault.name}")
            found = inject(fault, measurer)
            contained += found.is_contained
            note = f"{found.trial.outcome}: {found.trial.detail.splitlines()[0][:80] if found.trial.detail else ''}"
            yield Figure(fault.name, "tessera", threads, "s", found.beyond_s, BEYOND_S, note=note)
    finally:
        measurer.close()
    yield Figure("faults contained", "tessera", threads, "", float(contained), least=float(len(chosen)))


@contextmanager
def victim(folder: Path, trials: int, threads: int, module: str) -> Iterator[subprocess.Popen[str]]:
    """A tuning in a process of its own."""
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(folder), "TESSERA_THREADS": str(threads)}
    command = [sys.executable, "-m", module, str(trials)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        yield process


def told(process: subprocess.Popen[str], most: int | None = None) -> list[dict[str, Any]]:
    """What a victim tells of its trials, of the first `most` unless it ends before."""
    assert process.stdout is not None
    steps: list[dict[str, Any]] = []
    for line in process.stdout:
        steps.append(json.loads(line))
        if len(steps) == most:
            break
    return steps


def kept(folder: Path) -> list[str]:
    """The schedules of the trials below a cache folder, each once."""
    records = [json.loads(line) for log in folder.rglob("*.jsonl") for line in log.read_text().splitlines()]
    return list(dict.fromkeys(str(Schedule.from_json(record["schedule"])) for record in records))


def killed(after: int, trials: int, folder: Path, threads: int, module: str = VICTIM) -> tuple[int, float]:
    """Kills a tuning after so many trials and has another one finish it: (trials that were told and are not on disk,
    the time that taking the others over took, as a share of the time that measuring them took).
    """
    with victim(folder, trials, threads, module) as process:
        first = told(process, after)
        process.send_signal(signal.SIGKILL)
        first += told(process)
    on_disk = kept(folder)
    lost = len({step["schedule"] for step in first} - set(on_disk))
    with victim(folder, trials, threads, module) as process:
        again = told(process)
    known = [step["seconds"] for step in again if step["schedule"] in on_disk]
    return lost, max(known[: len(first)]) / first[-1]["seconds"]


def kills(progress: Callable[[str], None], moments: Sequence[int], trials: int, threads: int) -> Iterator[Figure]:
    """What is lost to ``kill -9``, and what resuming costs."""
    losses, shares = [], []
    for after in moments:
        progress(f"tune-faults: kill -9 after {after} trials")
        with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
            lost, share = killed(after, trials, Path(folder), threads)
        losses.append(lost)
        shares.append(share)
    moments_text = f"killed after {', '.join(map(str, moments))} of {trials} trials"
    yield Figure("finished trials lost to kill -9", "tessera", threads, "", float(max(losses)), 0.0, note=moments_text)
    yield Figure(
        "taking over what a killed tuning measured",
        "tessera",
        threads,
        "%",
        100 * max(shares),
        RESUME_PERCENT,
        note="of the time that measuring it took",
    )


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult("tune-faults", pool.threads)
    result.figures += faults(progress, FAULTS[:3] if quick else FAULTS, pool.threads)
    result.figures += kills(progress, KILLED_AFTER[:1] if quick else KILLED_AFTER, TRIALS, pool.threads)
    return result
