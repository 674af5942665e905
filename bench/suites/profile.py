"""What profiling costs: an operator with a session on, its end, its files, its memory; and that no kernel is lost
unseen. Goals are the issue's; torch's profiler stands beside them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.environments import environment
from bench.pool import Pool
from bench.results import Figure, SuiteResult

ROOT = Path(__file__).resolve().parents[2]
NAME = "profile"

OVERHEAD_LIMITS_US = {"operator": 0.15, "operator of a chain": 0.15}
END_LIMITS = {
    "json": ("us", 1.0),
    "parquet": ("us", 0.2),
    "report": ("us", 0.5),
    "json bytes": ("B", 110.0),
    "parquet bytes": ("B", 8.0),
    "memory": ("B", 64.0),
}
END_NAMES = {
    "json": "stop to disk as JSON, an event",
    "parquet": "stop to disk as Parquet, an event",
    "report": "report, an operator",
    "json bytes": "JSON, an event",
    "parquet bytes": "Parquet, an event",
    "memory": "resident memory, an event",
}


def measured(threads: int, quick: bool) -> dict[str, Any]:
    """What `bench.probes.profiling` found in a process of its own."""
    command = [sys.executable, "-m", "bench.probes.profiling", *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment("tessera", threads)
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def figures(found: Mapping[str, Any], threads: int) -> list[Figure]:
    """What was found, held against its limits."""
    made = []
    for name, values in found["overheads_ns"].items():
        made.append(_pairs(f"added, {name}", [each / 1000 for each in values], threads, OVERHEAD_LIMITS_US.get(name)))
    made.append(_pairs("no session, a kernel", [each / 1000 for each in found["without_session_ns"]], threads, 0.02))
    end = found["at_the_end"]
    note = f"{end['recorded']} of {end['launched']} kernels recorded; CPU time of all threads, best of 3"
    for name, (unit, limit) in END_LIMITS.items():
        value = end[name] / 1000 if unit == "us" else end[name]
        made.append(Figure(END_NAMES[name], "tessera", threads, unit, value, limit, note=note))
    told = found["sampling"]
    note = f"{told['ticks']} readings, {told['missed']} left out"
    made.append(Figure("sampling every 10 ms", "tessera", threads, "% of a CPU", told["share_pct"], 0.5, note=note))
    kept = found["conservation"]
    note = f"{kept['launched']} launched = {kept['recorded']} recorded + {kept['dropped']} dropped"
    made.append(Figure("sessions that lost a kernel unseen", "tessera", threads, "", kept["wrong"], 0, note=note))
    return made


def _pairs(name: str, values: list[float], threads: int, limit: float | None) -> Figure:
    contender = "torch" if "torch.profiler" in name else "tessera"
    note = f"{len(values)} pairs of blocks, from {min(values):.3g} to {max(values):.3g}"
    return Figure(name, contender, threads, "us", statistics.median(values), limit, note=note)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    progress(f"{NAME}, {pool.threads} threads")
    return SuiteResult(NAME, pool.threads, figures=figures(measured(pool.threads, quick), pool.threads))
