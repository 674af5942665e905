"""What reading a trace costs: every analysis of a million events and of twenty million, from Parquet."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.environments import environment
from bench.pool import Pool
from bench.results import Figure, SuiteResult

ROOT = Path(__file__).resolve().parents[2]
NAME = "profile-analyses"
MILLION = 1_000_000
LARGE = 20 * MILLION
REPEATS = 5


def probe(threads: int, *arguments: str) -> str:
    """What `bench.analyses_probe` prints in a process of its own. Raises RuntimeError where it fails."""
    variables = environment("tessera", threads) | {"POLARS_MAX_THREADS": str(threads)}
    command = [sys.executable, "-m", "bench.analyses_probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def figures(
    events: int, threads: int, repeats: int, folder: Path, limits: tuple[float | None, float]
) -> Iterator[Figure]:
    """Seconds and megabytes (medians of processes) for one size, and the seconds of each analysis. `limits` are those
    of seconds and megabytes.
    """
    path = folder / f"{events}.parquet"
    probe(threads, "make", str(events), str(path))
    answers = [json.loads(probe(threads, "run", str(path))) for _ in range(repeats)]
    medians = {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}
    what = f"{events:,} events"
    note = f"{path.stat().st_size / events:.1f} B an event; of the peak, {medians['import_mb']:.0f} MB are imports"
    yield Figure(f"{what}: load and all analyses", "tessera", threads, "s", medians["seconds"], limits[0])
    yield Figure(f"{what}: peak memory", "tessera", threads, "MB", medians["peak_mb"], limits[1], note=note)
    for name in medians.keys() - {"seconds", "peak_mb", "import_mb"}:
        yield Figure(f"{what}: {name}", "tessera", threads, "s", medians[name])


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult(NAME, pool.threads)
    sizes = [(MILLION // 10, None, 400.0)] if quick else [(MILLION, 1.5, 400.0), (LARGE, None, 1000.0)]
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        for events, seconds, megabytes in sizes:
            progress(f"{NAME}, {pool.threads} threads: {events:,} events")
            repeats = 1 if quick or events == LARGE else REPEATS
            result.figures += figures(events, pool.threads, repeats, Path(folder), (seconds, megabytes))
    return result
