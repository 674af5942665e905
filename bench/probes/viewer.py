"""``python -m bench.probes.viewer``: how long the viewer takes with traces of 1,000 to 20 million events, in Chromium.

Prints a table: each figure with its limit (issue 18), as it was measured, and the processor time that the server, the
browser and this command took for it together, which says more on a busy machine. ``--events 1e6`` measures the traces
of that size alone. Needs playwright and a Chromium; 20 million events take some minutes to be made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.machine import cores, cpu_name
from bench.probes.analyses import make

SIZES: Final = (1_000, 1_000_000, 5_000_000, 20_000_000)
FRAMES: Final = 60
_PATIENCE_MS: Final = 600_000
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_READY: Final = "page => document.querySelector('main')?.dataset.ready === page"
_SHOWN: Final = "page => document.querySelector('main')?.dataset.shown === page"
_FRAMES: Final = """async frames => {
  const [timeline, taken] = [window.tessera.timeline, []];
  for (let frame = 0; frame < frames; frame += 1) {
    timeline.zoom(frame % 20 < 10 ? 0.7 : 1 / 0.7);
    await new Promise(requestAnimationFrame);
    const begin = performance.now();
    timeline.draw();
    timeline.canvas.getContext('2d').getImageData(0, 0, 1, 1);
    taken.push(performance.now() - begin);
  }
  return taken;
}"""


_SEARCH: Final = """async () => {
  const begin = performance.now();
  await window.tessera.timeline.search('operator_[12]');
  return performance.now() - begin;
}"""
_BRUSH: Final = """async () => {
  const [begin, whole] = [performance.now(), window.tessera.timeline.whole];
  const [t0, t1] = [0.4, 0.5].map((share) => Math.round(whole[0] + share * (whole[1] - whole[0])));
  const answer = await fetch(`api/kernels?run=0&t0=${t0}&t1=${t1}`);
  const { rows } = await answer.json();
  if (!rows.length) throw new Error('no rows');
  return performance.now() - begin;
}"""
_WRITE: Final = """
import sys, time
from pathlib import Path
from tessera.profiling.trace.table import Trace
from tessera.viewer import one_file
from tessera.viewer.runs import run_of, runs_at
read = runs_at(Path(sys.argv[1]))[0].trace()
events = read.events.collect()
for _ in range(2):
    run = run_of(Trace(events.lazy(), read.metadata, read.capability), "session")
    begin, spent = time.perf_counter(), time.process_time()
    one_file.write([run], Path(sys.argv[2]))
    print(time.perf_counter() - begin, time.process_time() - spent)
"""
"""What `session.html` does with a trace in memory, twice in a process: seconds, and those of processors."""

_COMMAND: Final = (sys.executable, "-c", "from tessera.cli.prof import main; main()")

T = TypeVar("T")


def spent_s() -> float:
    """Processor seconds of this process, of those that it started, and of theirs, so far."""
    parents: dict[int, list[int]] = {}
    taken: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(folder.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        taken[pid] = sum(map(int, fields[11:15])) / _TICKS_S
    found, looked = 0.0, [os.getpid()]
    while looked:
        pid = looked.pop()
        found += taken.get(pid, 0.0)
        looked += parents.get(pid, [])
    return found


class Table:
    """The figures, each printed as soon as it is there."""

    def __init__(self) -> None:
        print(f"{'figure':<58} {'limit':>8} {'measured':>9} {'processor':>10}")

    def tell(
        self, what: str, limit: float | None, measured: float, unit: str, processor_s: float | None = None
    ) -> None:
        """Prints a figure."""
        bound = "" if limit is None else f"{limit:g} {unit}"
        spent = "" if processor_s is None else f"{processor_s:.2f} s"
        print(f"{what:<58} {bound:>8} {f'{measured:.3g} {unit}':>9} {spent:>10}", flush=True)

    def timed(self, what: str, limit: float | None, act: Callable[[], T]) -> T:
        """What `act` gives; its seconds are a figure."""
        spent, begin = spent_s(), time.perf_counter()
        found = act()
        self.tell(what, limit, time.perf_counter() - begin, "s", spent_s() - spent)
        return found


def listening(path: Path) -> tuple[subprocess.Popen[str], str]:
    """`tessera-prof view` and its address, once it says that."""
    arguments = [*_COMMAND, "view", "--no-open", str(path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the viewer has ended")
    return process, line.split()[1]


def peak_mb(pid: int) -> float:
    """The most memory that a process has had resident."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def opened(browser: Any, address: str, page: str, until: str = _READY) -> Any:
    """A page that is there, or `until` a condition of it, the first that asks the server for anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    if address.startswith("http"):
        context.request.get(address)  # for the cookie
        address = address.partition("?")[0]
    tab = context.new_page()
    tab.goto(f"{address}#page={page}", timeout=_PATIENCE_MS)
    wait_for(tab, page, until)
    return tab


def wait_for(tab: Any, page: str, until: str = _READY) -> None:
    """Waits for a condition of a page, by default that all of it is there."""
    tab.wait_for_function(until, arg=page, timeout=_PATIENCE_MS)


@contextmanager
def served(table: Table, path: Path, size: str, limit_s: float | None) -> Iterator[tuple[int, str]]:
    """The number and the address of a `tessera-prof view` of a trace."""
    process, address = table.timed(f"{size}: view until it listens", limit_s, lambda: listening(path))
    try:
        yield process.pid, address
    finally:
        process.terminate()
        process.wait()


def measure(table: Table, browser: Any, events: int, folder: Path) -> None:
    """Prints the figures of a trace of so many events."""
    size = f"{events:,} events"
    path, report = folder / "trace.parquet", folder / "report.html"
    make(events, path)
    is_million, is_five, is_largest = (events == each for each in SIZES[1:])
    with served(table, path, size, 0.7) as (pid, address):
        limit = 6.0 if is_largest else None
        shown = table.timed(
            f"{size}: first overview", limit, lambda: opened(browser, address, "overview", until=_SHOWN)
        )
        table.timed(f"{size}: until its kernels and advice are there", None, lambda: wait_for(shown, "overview"))
        shown.close()
        if is_largest:
            table.tell(f"{size}: the server's peak memory by then", 1000.0, peak_mb(pid), "MB")
    with served(table, path, size, None) as (pid, address):
        shown = table.timed(
            f"{size}: first full timeline", 2.0 if is_million else None, lambda: opened(browser, address, "timeline")
        )
        frames = sorted(shown.evaluate(_FRAMES, FRAMES))
        table.tell(f"{size}: a frame of a zoom, median", 16.0, statistics.median(frames), "ms")
        table.tell(f"{size}: a frame of a zoom, 95 %", 50.0, frames[int(0.95 * len(frames))], "ms")
        table.tell(f"{size}: search of all names", 100.0 if is_million else None, shown.evaluate(_SEARCH), "ms")
        table.tell(f"{size}: window to table of kernels", 400.0 if is_million else None, shown.evaluate(_BRUSH), "ms")
        table.tell(f"{size}: slices drawn", None, shown.evaluate("window.tessera.timeline.parts[0].data.head.n"), "")
        table.tell(f"{size}: the server's peak memory", None, peak_mb(pid), "MB")
        shown.close()
    if is_largest:
        return
    write = [sys.executable, "-c", _WRITE, str(path), str(report)]
    limit = {SIZES[0]: 0.3, SIZES[1]: 3.0}.get(events)
    said = subprocess.run(write, check=True, capture_output=True, text=True).stdout
    for which, line in zip(("the first of a process", "again"), said.splitlines(), strict=True):
        seconds, spent = map(float, line.split())
        table.tell(f"{size}: session.html(), {which}", limit, seconds, "s", spent)
    command = [*_COMMAND, "html", str(path), "-o", str(report)]
    table.timed(
        f"{size}: tessera-prof html, with Python's start",
        None,
        lambda: subprocess.run(command, check=True, capture_output=True),
    )
    table.tell(f"{size}: size of the report", None, report.stat().st_size / 1e6, "MB")
    limit = 1.5 if is_million else 4.0 if is_five else None
    table.timed(
        f"{size}: report in one file opened", limit, lambda: opened(browser, report.as_uri(), "timeline").close()
    )


def main(sizes: tuple[int, ...]) -> None:
    """Prints all figures."""
    from playwright.sync_api import sync_playwright

    print(f"{cpu_name()}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
    table = Table()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    for events in sizes:
        with tempfile.TemporaryDirectory() as place, sync_playwright() as running:
            browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            browser.new_page().close()  # the browser's own start is not the viewer's
            measure(table, browser, events, Path(place))
            browser.close()


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument(
        "--events", type=float, action="append", help="a size of trace; all of the table if none is given"
    )
    chosen = asked.parse_args().events
    main(tuple(int(each) for each in chosen) if chosen else SIZES)
