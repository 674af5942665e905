"""``python -m bench.gpu [SUITE ...] [--build] [--without PEER ...] [--json FILE] [--markdown FILE]``."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench.gpu import results
from bench.gpu.cases import Place
from bench.gpu.running import WrongResultError, built, run
from bench.gpu.suites import SUITES
from bench.gpu.timing import CudaTimer
from tessera.errors import DeviceFaultError, MemoryLimitError


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Tessera on this machine's GPU.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument("--build", action="store_true", help="compile what would be measured of ours, and run it once")
    parser.add_argument("--without", nargs="+", default=(), metavar="PEER", help="peers that are not measured")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(SUITES)}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes after every case, so that a run that is cut short keeps what it has.

    Returns the exit code: 1 without a GPU, where a result was wrong, where memory did not suffice and where the GPU was
    lost, which ends the run; 0 otherwise, also when a goal was missed.
    """
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    place, wrong = Place(), 0
    if options.build:
        for case in itertools.chain.from_iterable(SUITES[suite]() for suite in options.suites or SUITES):
            print(case.label, f"{built(case, place)} schedules", sep="  ", flush=True)
        return 0
    timer = CudaTimer()
    found: list[results.Found] = []
    for suite in options.suites or SUITES:
        for case in SUITES[suite]():
            try:
                for result in run(case, place, timer, options.without):
                    found.append(result)
                    print("\n".join("  ".join(cells) for cells in results.rows(result)), flush=True)
            except WrongResultError as problem:
                print(f"WRONG: {problem}", file=sys.stderr, flush=True)
                wrong += 1
            except (MemoryLimitError, torch.OutOfMemoryError) as problem:
                print(f"not measured: {case.label}: {problem}", file=sys.stderr, flush=True)
                wrong += 1
            except DeviceFaultError as problem:
                print(f"LOST at {case.label}: {problem}", file=sys.stderr, flush=True)
                return 1
            write(found, options)
    return 1 if wrong else 0


def write(found: Sequence[results.Found], options: argparse.Namespace) -> None:
    """Writes the results so far to the files that were asked for."""
    versions = {"torch": torch.__version__, "triton": _triton(), "cuda": str(torch.version.cuda)}
    device, date = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    if options.markdown:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        options.markdown.write_text(results.markdown(found, f"{device}, {listed}, {date}"))
    if options.json:
        document = {"device": device, "versions": versions, "date": date, "cases": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _triton() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
