"""``python -m bench record OP ...``: records tables of measurements, see `bench.tuning`.

OP is an operator (matmul, attention, ...) or one problem's name; ``--list`` prints them. ``--all`` records everything,
the most important first; with ``--budget-minutes`` it ends in time, and the same command goes on where it ended.
Tables of the same generator that are complete are kept, unless ``--anew``.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench import machine
from bench.tuning.problems import PROBLEMS, Problem, matching
from bench.tuning.recorder import Recorder
from bench.tuning.table import BUSY, TABLES, Table, read
from tessera.backend.llvm import ceilings
from tessera.errors import CacheFormatError, TesseraError
from tessera.tuning.store.identity import Provenance


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench record", description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="OP", help="an operator, or the name of a problem")
    parser.add_argument("--all", action="store_true", help="all problems")
    parser.add_argument("--list", action="store_true", help="print the problems, and record nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of the kernels (default: 1)")
    parser.add_argument("--folder", type=Path, help="where tables go (default: bench/tables/<cpu>)")
    parser.add_argument("--budget-minutes", type=float, default=math.inf, help="minutes after which nothing is begun")
    parser.add_argument("--most", type=int, help="schedules of one problem at most: of more, a sample")
    parser.add_argument("--anew", action="store_true", help="record again what is recorded")
    asked = parser.parse_args(arguments)
    if not (asked.all or asked.operators or asked.list):
        parser.error("name an operator, or --all")
    try:
        asked.problems = matching(asked.operators)
    except KeyError as unknown:
        operators = ", ".join(sorted({problem.operator for problem in PROBLEMS}))
        parser.error(f"no problem is called {unknown}; operators are {operators}, and --list prints all problems")
    return asked


def main(arguments: Sequence[str]) -> int:
    """Records what was asked for. Returns the exit code: 1 where a problem could not be recorded."""
    asked = parse(arguments)
    torch.set_num_threads(asked.threads)
    if asked.list:
        print("\n".join(problem.name for problem in asked.problems))
        return 0
    ceilings.measured()  # predictions, and what is tuned, rest on them
    folder = asked.folder or TABLES / machine.cpu_slug()
    deadline = time.monotonic() + 60 * asked.budget_minutes
    failed = 0
    for problem in asked.problems:
        if time.monotonic() >= deadline:
            print(f"{problem.name}: not begun, the time is up", flush=True)
            continue
        try:
            print(_recorded(problem, folder, deadline, asked), flush=True)
        except TesseraError as error:
            failed += 1
            print(f"{problem.name}: not recorded: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _recorded(problem: Problem, folder: Path, deadline: float, asked: argparse.Namespace) -> str:
    """Records one problem; a line that says what came of it."""
    begin = time.monotonic()
    recorder = Recorder(problem, folder, deadline, lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    recorder.most = asked.most
    if not asked.anew and _is_complete(recorder):
        return f"{problem.name}: recorded already"
    if asked.anew:
        recorder.part.unlink(missing_ok=True)
    table = recorder.run()
    took = f"{time.monotonic() - begin:.0f} s"
    if recorder.part.exists():
        return f"{problem.name}: NOT FINISHED after {took}; the same command goes on"
    return f"{summary(table)}; {took}, {recorder.path.stat().st_size / 1000:.0f} kB"


def summary(table: Table) -> str:
    """One line on a table."""
    medians = sorted(table.seconds.values())
    if not medians:
        return f"{table.about.name}: no schedule of the space was measured"
    share = medians[0] / medians[len(medians) // 2]
    of = "all" if table.exhaustive else f"{len(medians)} of"
    known = f", known best {table.best_s / table.known_s:.3f} of the best" if table.known_s else ""
    busy = f", {100 * table.busy_share:.0f} % of samples disturbed" if table.busy_share > BUSY else ""
    return (
        f"{table.about.name}: {of} {table.about.legal} schedules, best {table.best_s * 1e6:.1f} us, "
        f"median {share:.2f} of it{known}{busy}"
    )


def _is_complete(recorder: Recorder) -> bool:
    """Whether there is a finished table of the same generator."""
    if recorder.part.exists() or not recorder.path.exists():
        return False
    try:
        there = read(recorder.path).about.provenance
    except CacheFormatError:
        return False
    return not there.stale_fields(Provenance.current(recorder.posed.problem.generator, "recorded"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
