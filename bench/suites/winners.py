"""What the tuning database costs and keeps: look-ups, opening it with many entries, and writers at once."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.pool import Pool
from bench.probes import winners
from bench.results import Figure, SuiteResult
from tessera.tuning.store import packs
from tessera.tuning.store.database import TuningDatabase

ROOT = Path(__file__).resolve().parents[2]
KERNELS, SHAPES = 100, 1000
WRITERS, WRITTEN = 8, 1000
REPEATS = 9
CALLS = 2000
NEW = (24, 64, 100)
"""A shape that no winner has."""


def seconds(call: Callable[[], object]) -> float:
    """Median over `REPEATS` batches of the seconds of one call, by the clock of this thread."""

    def batch() -> float:
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        return (time.thread_time() - start) / CALLS

    call()
    return statistics.median(batch() for _ in range(REPEATS))


def opened(folder: Path, site: Path, kernel: int, nearest: bool) -> float:
    """Seconds by the wall from an unread database to its first answer about a kernel."""
    start = time.perf_counter()
    database = TuningDatabase(folder, (site,), None)
    if nearest:
        found = database.nearest(winners.identity(kernel, NEW))
    else:
        found = database.lookup(winners.identity(kernel, next(winners.shapes(1))))
    took = time.perf_counter() - start
    if found is None:
        raise AssertionError(f"kernel {kernel} is not found below {folder} and {site}")
    return took


def look_ups(folder: Path, threads: int) -> Iterator[Figure]:
    """Answers of a database that has read what it needs."""
    database = TuningDatabase(folder)
    known, new = winners.identity(0, next(winners.shapes(1))), winners.identity(0, NEW)
    absent = winners.identity(-7, NEW)
    rows: tuple[tuple[str, Callable[[], object], float | None], ...] = (
        ("hit", lambda: database.lookup(known), 5.0),
        ("nearest shape", lambda: database.nearest(new), None),
        ("miss", lambda: database.lookup(absent), None),
    )
    for name, call, limit in rows:
        yield Figure(name, "tessera", threads, "us", 1e6 * seconds(call), limit, None)


def openings(files: Path, packed: Path, empty: Path, threads: int, kernels: int) -> Iterator[Figure]:
    """First answers of a database that has read nothing, among all entries: one file each, and packed by kernel."""
    for layout, places in (("a file each", (files, empty)), ("packed", (empty, packed))):
        for name, nearest in (("first hit", False), ("first nearest shape", True)):
            took = statistics.median(opened(*places, kernel % kernels, nearest) for kernel in range(REPEATS))
            yield Figure(f"{name}, {layout}", "tessera", threads, "ms", 1e3 * took, 20.0, None)


def writers(folder: Path, threads: int, count: int) -> Iterator[Figure]:
    """Entries lost and torn when several processes write at once, the same entry among them."""
    command = [sys.executable, "-m", "bench.probes.winners", str(folder)]
    running = [subprocess.Popen([*command, str(number), str(count)], cwd=ROOT) for number in range(WRITERS)]
    failed = sum(process.wait() != 0 for process in running)
    database = TuningDatabase(folder, shipped=None)
    found = {entry.identity: entry for entry in database.entries()}
    wanted = [winners.identity(number, shape) for number in range(WRITERS) for shape in winners.shapes(count)]
    lost = sum(each not in found for each in [*wanted, winners.identity(-1, winners.SHARED)])
    torn = len(database.problems) + sum(1 for _ in folder.rglob("*.tmp"))
    named = f"{WRITERS} processes with {count} entries each"
    for what, number in (("lost", lost), ("torn", torn), ("failed writers", failed)):
        yield Figure(f"{named}: {what}", "tessera", threads, "", float(number), 0.0, None)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite; `quick` with a hundredth of the entries."""
    kernels, count, written = (10, 100, 10) if quick else (KERNELS, SHAPES, WRITTEN)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as place:
        folders = {name: Path(place) / name for name in ("files", "packed", "empty", "written")}
        progress(f"tune-cache, {kernels * count} entries")
        winners.fill(folders["files"], kernels, count)
        entries = (winners.entry(kernel, shape) for kernel in range(kernels) for shape in winners.shapes(count))
        packs.write_packs(entries, folders["packed"])
        figures += openings(folders["files"], folders["packed"], folders["empty"], pool.threads, kernels)
        figures += look_ups(folders["files"], pool.threads)
        progress(f"tune-cache, {WRITERS} writers")
        figures += writers(folders["written"], pool.threads, written)
    return SuiteResult("tune-cache", pool.threads, [], figures)
