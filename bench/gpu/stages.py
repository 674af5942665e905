"""What one call of `bench/gpu.sh` does on a machine with a GPU: steps in processes of their own, and a table of them.

``python -m bench.gpu.stages [STAGE ...] [--out FOLDER] [--limit-s SECONDS]``

A step that fails, dies or takes too long is named in the table, with the last line that it wrote, and keeps no other
from being run: a fault loses the GPU for its process only. Steps that time nothing and take little memory run at once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.gpu.suites import SUITES

LIMIT_S: Final = 600.0
"""Seconds of one step, if not said otherwise."""
_ROOT: Final = Path(__file__).parent.parent.parent
_TESTS: Final = (
    *("test_driver", "test_float8", "test_printed_kernels", "test_plans", "test_streams", "test_tile_times"),
    *("test_attention_gradient", "test_attention_window", "test_cuda_tile", "test_all_reduce", "test_tuning"),
)
"""Files of `tests/gpu`: what is smallest and what others stand on comes first. Counters are a stage of their own."""
_TIMED: Final = ("test_tile_times", "test_all_reduce", "test_tuning")
"""Those of them that time kernels, or want to be alone for other reasons."""
_COUNTERS: Final = ("test_ceilings", "test_counters")
_PROCESSORS_EACH: Final = 2
"""Processors for each step that runs beside others: it, and the compiler that it waits for, take turns."""


@dataclass(frozen=True)
class Step:
    """One process: its name in the table, its command, and whether it may run `beside` others."""

    name: str
    command: Sequence[str]
    beside: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a step: "passed", or why not, its seconds, and the last line of what it wrote."""

    step: Step
    result: str
    seconds: float
    last: str


def correctness(out: Path) -> Iterator[Step]:
    """`tests/gpu` but for what counts and times; each family of kernels is a step."""
    from tests.gpu import test_plans, test_printed_kernels

    cases: dict[str, tuple[str, Collection[str]]] = {
        "test_plans": ("test_every_family", test_plans.FAMILIES),
        "test_printed_kernels": ("test_printed_kernels_compute_what_torch_does", test_printed_kernels.PROGRAMS),
    }
    for name in _TESTS:
        if name not in cases:
            yield _tested(name, beside=name not in _TIMED)
            continue
        test, named = cases[name]
        for case in named:
            yield Step(f"{name}, {case}", _pytest(f"tests/gpu/{name}.py::{test}[{case}]"), beside=True)
        if name == "test_plans":
            yield Step(f"{name}, the rest", [*_pytest(f"tests/gpu/{name}.py"), "-k", f"not {test}"])


def build(out: Path) -> Iterator[Step]:
    """What `speed` measures of ours, compiled into the cache and run once."""
    for suite in SUITES:
        yield Step(f"build {suite}", [sys.executable, "-m", "bench.gpu", suite, "--build"], beside=True)


def speed(out: Path) -> Iterator[Step]:
    """Launches, each suite of kernels against its peers, and tuners."""
    yield _measured("launch", "bench.gpu.launch", out / "gpu_launch")
    for suite in SUITES:
        yield _measured(suite, "bench.gpu", out / f"gpu_{suite}", suite)
    yield _measured("tuning", "bench.gpu.contest", out / "gpu_tuning", "--without", "helion")


def counters(out: Path) -> Iterator[Step]:
    """Which constants of the model choices hang on here, then ceilings and counters, also beside `ncu`'s."""
    yield Step("model", [sys.executable, "-m", "tessera", "doctor", "--gpu-model", "here"])
    yield from map(_tested, _COUNTERS)
    yield _measured("ncu", "bench.gpu.ncu_peer", out / "gpu_ncu")


STAGES: Final[Mapping[str, Callable[[Path], Iterator[Step]]]] = {
    "correctness": correctness,
    "build": build,
    "speed": speed,
    "counters": counters,
}


def _pytest(what: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "0", "-p", "no:cacheprovider", what]


def _tested(name: str, beside: bool = False) -> Step:
    return Step(name, _pytest(f"tests/gpu/{name}.py"), beside)


def _measured(name: str, module: str, files: Path, *arguments: str) -> Step:
    written = ["--json", f"{files}.json", "--markdown", f"{files}.md"]
    return Step(name, [sys.executable, "-m", module, *arguments, *written])


def run(step: Step, limit_s: float) -> Outcome:
    """Runs a step to its end, or to the limit."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            step.command,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        text, result = done.stdout, _result(done.returncode, done.stdout)
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace")  # bytes also where text was asked for
        result = f"not done within {limit_s:.0f} s"
    print(text, end="", flush=True)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Outcome(step, result, time.monotonic() - begin, lines[-1] if lines else "")


def _result(code: int, text: str) -> str:
    if code < 0:
        return f"killed by signal {-code}"
    if code:
        return f"FAILED ({code})"
    # pytest passes a file of which it skipped all.
    return "skipped" if " skipped" in text and " passed" not in text else "passed"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table of what became of the steps."""
    lines = ["| step | result | seconds | last line |", "| --- | --- | --- | --- |"]
    for outcome in outcomes:
        last = outcome.last.replace("|", "/")[:120]
        lines.append(f"| {outcome.step.name} | {outcome.result} | {outcome.seconds:.0f} | {last} |")
    return "\n".join(lines) + "\n"


def run_all(steps: Sequence[Step], table: Path, limit_s: float) -> int:
    """Runs the steps, and writes the table after each. Returns 0 where all passed, else 1."""
    outcomes: list[Outcome] = []
    workers = max((os.cpu_count() or 1) // _PROCESSORS_EACH, 1)
    for beside, some in itertools.groupby(steps, key=lambda step: step.beside):
        with ThreadPoolExecutor(workers if beside else 1) as pool:
            for outcome in pool.map(run, some, itertools.repeat(limit_s)):
                outcomes.append(outcome)
                table.write_text(markdown(outcomes))
    print(markdown(outcomes), flush=True)
    return 0 if all(outcome.result == "passed" for outcome in outcomes) else 1


def main(arguments: Sequence[str]) -> int:
    """Returns 0 where every step passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.stages")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the tables")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of one step")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.stages if name not in STAGES]
    if unknown:
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(STAGES)}")
    failed = 0
    for name in options.stages or STAGES:
        steps = list(STAGES[name](options.out))
        failed |= run_all(steps, options.out / f"gpu_{name}_steps.md", options.limit_s)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
