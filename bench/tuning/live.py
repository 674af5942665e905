"""The live contest of tuners: the suite ``tune-peers``.

Each tuner works on each problem in a fresh process, from empty caches and without winners that ship with the package,
one after the other; afterwards both winners are checked against float64 and timed in turn. The seconds of a tuner are
those of its call: what it compiles, measures and starts meanwhile counts, the imports before do not. TVM runs under the
Python that the environment variable `BENCH_TVM_PYTHON` names (docs/benchmarking.md).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ceilings import CaseBound
from bench.contest import Contender, bound, measure
from bench.environments import NotMeasuredError, unaided
from bench.pool import Pool, Process, RemoteCall
from bench.results import CaseResult, Figure, Goal, Measurement, SuiteResult
from bench.timing import Budget
from bench.tuning.contest_problems import PROBLEMS, QUICK, Problem

OURS = Contender("tessera", "tessera", "bench.tuning.ours", "ours", "out")
TVM = Contender("TVM MetaSchedule", "tvm", "bench.tuning.tvm_peer", "library", "out")
TRIALS = {OURS.name: 16, TVM.name: 64}
QUICK_TRIALS = {OURS.name: 4, TVM.name: 4}
TVM_PYTHON = "BENCH_TVM_PYTHON"
SHARE_PCT = 10.0
"""The most of the peer's wall-clock that our tuning may take."""
GOALS = (Goal("TVM's winner of 64 trials", ("library",), 1.0),)
BUDGET = Budget(seconds=3.0, kept=15, limit_s=20.0)
SHORT = Budget(seconds=0.1, kept=3, limit_s=2.0)


@dataclass(frozen=True)
class Tuning:
    """What a tuner said: the seconds it took, the candidates it measured, its winner in its own words."""

    seconds: float
    trials: int
    label: str


class Round:
    """One problem: the tuners' processes, and what each tuner said of its tuning."""

    def __init__(self, problem: Problem, threads: int, trials: Mapping[str, int], caches: Path) -> None:
        self._problem, self._threads, self._trials, self._caches = problem, threads, trials, caches
        self._processes: list[Process] = []
        self.tunings: dict[str, Tuning] = {}

    def prepare(self, contender: Contender) -> RemoteCall:
        """Has a contender tune the problem, and checks its winner.

        Raises:
            NotMeasuredError: it cannot run here, or its winner's result is wrong; the text is the reason.
        """
        variables = unaided(contender.environment, self._threads, self._caches)
        process = Process(contender.name, [python_of(contender), "-m", contender.builder], variables)
        self._processes.append(process)
        problem, most = self._problem, self._trials[contender.name]
        tuned = process.ask(do="tune", operation=problem.operation, shape=problem.shape, trials=most)
        self.tunings[contender.name] = Tuning(**tuned)
        ready = process.ask(do="prepare", contender=contender.name)
        return RemoteCall(process, contender.name, ready["seconds"], ready["error"])

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.close()


def python_of(contender: Contender, variables: Mapping[str, str] = os.environ) -> str:
    """The Python that a tuner runs under. Raises NotMeasuredError where there is none."""
    if contender.environment != "tvm":
        return sys.executable
    python = variables.get(TVM_PYTHON)
    if not python or not Path(python).exists():
        raise NotMeasuredError(f"{TVM_PYTHON} names no Python that has apache-tvm")
    return python


def hold(
    problem: Problem, threads: int, trials: Mapping[str, int], budget: Budget
) -> tuple[Sequence[Measurement], Mapping[str, Tuning]]:
    """Has the tuners tune one after the other, and times their winners in turn."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        round_ = Round(problem, threads, trials, Path(folder))
        try:
            return measure((OURS, TVM), round_.prepare, budget), round_.tunings
        finally:
            round_.close()


def figures(problem: Problem, tunings: Mapping[str, Tuning], threads: int, reason: str | None) -> list[Figure]:
    """What tuning took, and our share of the peer's wall-clock; `reason` says why one of them has none."""
    listed = [
        Figure(f"{problem.name}: tuning, {tuning.trials} trials", name, threads, "s", tuning.seconds, note=tuning.label)
        for name, tuning in tunings.items()
    ]
    ours, theirs = tunings.get(OURS.name), tunings.get(TVM.name)
    share = 100 * ours.seconds / theirs.seconds if ours and theirs else None
    name = f"{problem.name}: share of {TVM.name}'s wall-clock"
    why = None if share is not None else reason or "a tuner gave no result"
    return [*listed, Figure(name, OURS.name, threads, "%", share, limit=SHARE_PCT, reason=why)]


def case_of(problem: Problem, threads: int, measurements: Sequence[Measurement], least: CaseBound | None) -> CaseResult:
    """The winners' times as other suites show theirs."""
    seconds, binds = (least.seconds, least.binds) if least else (None, None)
    sizes = problem.flops, problem.bytes
    return CaseResult(problem.name, threads, *sizes, seconds, binds, tuple(measurements), GOALS)


def summary(problem: Problem, case: CaseResult, tunings: Mapping[str, Tuning]) -> str:
    """One line of what came of a problem."""
    (verdict,) = case.verdicts()
    ratio = "not measured" if verdict.ratio is None else f"{verdict.ratio:.2f}"
    took = ", ".join(f"{name} {tuning.seconds:.1f} s" for name, tuning in tunings.items())
    return f"{problem.name}: {TVM.name}'s time / ours {ratio}; tuning: {took}"


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count. What was measured before Ctrl-C is kept."""
    result = SuiteResult("tune-peers", pool.threads)
    try:
        for problem in QUICK if quick else PROBLEMS:
            progress(f"tune-peers, {pool.threads} threads: {problem.name}")
            _run_problem(problem, pool, progress, quick, result)
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _run_problem(
    problem: Problem, pool: Pool, progress: Callable[[str], None], quick: bool, result: SuiteResult
) -> None:
    trials, budget = (QUICK_TRIALS, SHORT) if quick else (TRIALS, BUDGET)
    measurements, tunings = hold(problem, pool.threads, trials, budget)
    least = bound(pool, problem.operation, problem.flops, problem.bytes, "fp32")
    case = case_of(problem, pool.threads, measurements, least)
    result.cases.append(case)
    reason = next((each.reason for each in measurements if each.reason), None)
    result.figures.extend(figures(problem, tunings, pool.threads, reason))
    progress(summary(problem, case, tunings))
