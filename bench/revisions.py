"""``python -m bench.revisions BEFORE [--threads N] [--seconds S] [--only REGEX] [--save]``

Measures the sources as they are against another revision of them, in one run.

Three workers take turns at each case: the revision BEFORE, the sources as they are, and these once more. The third is
the control: how far its times lie from the second's is what this machine's noise makes of equal code. All run under the
schedules of their cost models, from empty caches, and each checks its results first.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import machine, table
from bench.cases import Case
from bench.environments import NotMeasuredError, unaided
from bench.jobs import THEMES, load
from bench.jobs.contenders import OURS
from bench.micro import CALLS
from bench.pool import Process, RemoteCall
from bench.suites import gemm, rowwise
from bench.timing import Budget, Samples, interleave

ROOT = Path(__file__).resolve().parent.parent
BEFORE, AFTER, CONTROL = "before", "after", "control"
COLUMNS = ("case", "before", "after", "before / after", "control / after", "batches")
SUITES = ("attention", "conv", "skinny")
"""The suites of jobs whose cases are compared, beside products, row-wise operators and what a call costs."""

Prepared = Callable[[Process], RemoteCall]


@dataclass(frozen=True)
class Row:
    """One case: median seconds of each worker, and how many undisturbed batches the fewest of them rest on."""

    case: str
    seconds: Mapping[str, float]
    batches: int

    def ratio(self, name: str) -> float:
        """A worker's time over that of the sources as they are."""
        return self.seconds[name] / self.seconds[AFTER]


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with another revision, which goes at the end."""
    with tempfile.TemporaryDirectory(prefix="tessera-revision-") as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, revision], cwd=ROOT, check=True)
        try:
            _describe(Path(folder))
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def _describe(sources: Path) -> None:
    """Metadata as an installation has it: a revision may ask for its version by the name that it had then."""
    project = tomllib.loads((sources / "pyproject.toml").read_text())["project"]
    metadata = sources / "src" / f"{project['name']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project.get('version', 0)}\n"
    )


def worker(name: str, sources: Path, threads: int, caches: Path) -> Process:
    """A worker with this checkout's `bench` and the package `tessera` of `sources`."""
    variables = unaided("tessera", threads, caches) | {"PYTHONPATH": os.pathsep.join((str(sources / "src"), str(ROOT)))}
    return Process(name, [sys.executable, "-m", "bench.worker", str(threads), "tessera", "untuned"], variables)


def _micro(name: str) -> Prepared:
    def prepared(process: Process) -> RemoteCall:
        answer = process.ask(do="micro", contender=name, name=name)
        return RemoteCall(process, name, answer["seconds"], None)

    return prepared


def _case(case: Case) -> Prepared:
    def prepared(process: Process) -> RemoteCall:
        answer = process.ask(do="prepare", contender=OURS, builder="tessera_fresh", case=asdict(case))
        return RemoteCall(process, OURS, answer["seconds"], answer["error"])

    return prepared


def _job(theme: str, name: str, folder: Path) -> Prepared:
    def prepared(process: Process) -> RemoteCall:
        problem = {"theme": theme, "name": name, "quick": False, "path": str(folder / f"{process.name}.pt")}
        process.ask(do="reference", **problem)
        answer = process.ask(do="job", contender=OURS, **problem)
        return RemoteCall(process, OURS, answer["seconds"], answer["error"])

    return prepared


def cases(folder: Path) -> Iterator[tuple[str, Prepared]]:
    """What is compared, by name. References of jobs are written to `folder`."""
    yield from ((name, _micro(name)) for name in CALLS if name.startswith("tessera"))
    products_and_rows = [case for case, _ in (*gemm.cases(quick=False), *rowwise.cases(quick=False))]
    yield from ((case.label, _case(case)) for case in products_and_rows)
    for suite in SUITES:
        for theme in THEMES[suite]:
            yield from ((f"{theme}: {job.name}", _job(theme, job.name, folder)) for job in load(theme, False))


def row(name: str, samples: Mapping[str, Samples]) -> Row:
    """What came of one case."""
    medians = {each: found.median for each, found in samples.items()}
    return Row(name, medians, min(len(found.kept) for found in samples.values()))


def cells(found: Sequence[Row]) -> list[table.Cells]:
    """The lines of the table, the slowest beside what was before first, and the geometric mean of all."""
    lines: list[table.Cells] = [
        (
            each.case,
            table.duration(each.seconds[BEFORE]),
            table.duration(each.seconds[AFTER]),
            f"{each.ratio(BEFORE):.3f}",
            f"{each.ratio(CONTROL):.3f}",
            str(each.batches),
        )
        for each in sorted(found, key=lambda each: each.ratio(BEFORE))
    ]
    if found:
        means = (f"{_mean([each.ratio(name) for each in found]):.3f}" for name in (BEFORE, CONTROL))
        lines.append((f"geometric mean of {len(found)}", "", "", *means, ""))
    return lines


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def measure(revision: str, threads: int, seconds: float, only: str, say: Callable[[str], None]) -> list[Row]:
    """The rows of the cases whose names match `only`. What one of the two cannot run is said and left out."""
    found: list[Row] = []
    budget = Budget(seconds=seconds, kept=5, limit_s=4 * seconds)
    with ExitStack() as stack:
        before = stack.enter_context(checkout(revision))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tessera-bench-")))
        workers = []
        for name, sources in ((BEFORE, before), (AFTER, ROOT), (CONTROL, ROOT)):
            workers.append(worker(name, sources, threads, folder / name))
            stack.callback(workers[-1].close)
        for label, prepared in cases(folder):
            if not re.search(only, label):
                continue
            try:
                calls = {each.name: prepared(each) for each in workers}
                found.append(row(label, interleave(calls, budget)))
            except NotMeasuredError as failure:
                say(f"{label}: not measured: {failure}")
                continue
            say(f"{label}: {found[-1].ratio(BEFORE):.3f} (control {found[-1].ratio(CONTROL):.3f})")
            for each in workers:
                each.ask(do="drop")
    return found


def main(arguments: Sequence[str]) -> None:
    """Measures and prints; with `--save` also writes a table into bench/results."""
    parser = argparse.ArgumentParser(prog="python -m bench.revisions", description=__doc__)
    parser.add_argument("before", help="the revision to compare with")
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--seconds", type=float, default=1.0, help="the least time that a case gets")
    parser.add_argument("--only", default="", metavar="REGEX", help="the cases whose names match")
    parser.add_argument("--save", action="store_true", help="also write bench/results/<cpu>-<date>-revisions.md")
    options = parser.parse_args(arguments)
    found = measure(options.before, options.threads, options.seconds, options.only, partial(print, flush=True))
    title = f"this checkout against {options.before}, {table.threads(options.threads)}"
    sheet = table.Sheet(title, COLUMNS, cells(found))
    table.print_sheets([sheet], Console())
    if options.save:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path = ROOT / "bench" / "results" / f"{machine.cpu_slug()}-{now[:10]}-revisions.md"
        heading = f"{machine.cpu_name()}, {machine.cores()} cores, {now}; schedules of the cost models, nothing tuned"
        path.write_text(table.markdown([sheet], heading))
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
