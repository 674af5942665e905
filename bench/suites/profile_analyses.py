"""Reading a trace: every analysis of a million events from Parquet and from JSON, and of twenty million."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """What `bench.probes.analyses` prints in a process of its own. Raises RuntimeError where it fails."""
    variables = environment("tessera", threads) | {"POLARS_MAX_THREADS": str(threads)}
    command = [sys.executable, "-m", "bench.probes.analyses", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()[-400:]}")
    return done.stdout


@dataclass(frozen=True)
class Size:
    """A trace to be read, the format by its ending, and the most seconds and megabytes that may take."""

    events: int
    ending: str
    seconds: float | None
    megabytes: float

    def __str__(self) -> str:
        return f"{self.events:,} events, {'JSON' if self.ending == 'json' else 'Parquet'}"


SIZES = (Size(MILLION, "parquet", 1.5, 400.0), Size(MILLION, "json", 6.0, 1000.0), Size(LARGE, "parquet", None, 1000.0))
QUICK = (Size(MILLION // 10, "parquet", None, 400.0),)


def figures(size: Size, threads: int, repeats: int, folder: Path) -> Iterator[Figure]:
    """Seconds and megabytes (medians of processes) for one size, and the seconds of reading and of each analysis."""
    path = folder / f"{size.events}.{size.ending}"
    probe(threads, "make", str(size.events), str(path))
    answers = [json.loads(probe(threads, "run", str(path))) for _ in range(repeats)]
    medians = {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}
    note = f"{path.stat().st_size / size.events:.1f} B an event; of the peak, {medians['import_mb']:.0f} MB are imports"
    yield Figure(f"{size}: load and all analyses", "tessera", threads, "s", medians["seconds"], size.seconds)
    yield Figure(f"{size}: peak memory", "tessera", threads, "MB", medians["peak_mb"], size.megabytes, note=note)
    for name in medians.keys() - {"seconds", "peak_mb", "import_mb"}:
        yield Figure(f"{size}: {name}", "tessera", threads, "s", medians[name])


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult(NAME, pool.threads)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        for size in QUICK if quick else SIZES:
            progress(f"{NAME}, {pool.threads} threads: {size}")
            repeats = 1 if quick or size.events == LARGE else REPEATS
            result.figures += figures(size, pool.threads, repeats, Path(folder))
    return result
