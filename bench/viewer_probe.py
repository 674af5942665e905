"""``python -m bench.viewer_probe EVENTS``: how long the viewer takes with a trace of so many events, in Chromium.

Prints a line for each figure: `tessera-prof view` until it listens, the server's peak memory, the first full timeline,
a frame of a zoom, the report in one file written and opened. Needs playwright and a Chromium.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.analyses_probe import make

FRAMES: Final = 60
_PATIENCE_MS: Final = 600_000
_READY: Final = "page => document.querySelector('main')?.dataset.ready === page"
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


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what it gave."""
    begin = time.perf_counter()
    found = act()
    return time.perf_counter() - begin, found


def tell(what: str, value: float, unit: str) -> None:
    """Prints a figure."""
    print(f"{what}: {value:.3g} {unit}", flush=True)


def listening(path: Path) -> tuple[subprocess.Popen[str], str]:
    """`tessera-prof view` and its address, once it says that."""
    command = "from tessera.cli.prof import main; main()"
    arguments = [sys.executable, "-c", command, "view", "--no-open", str(path)]
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


def opened(browser: Any, address: str, page: str) -> Any:
    """A page that is shown."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(f"{address}#page={page}", timeout=_PATIENCE_MS)
    if page == "timeline" and "token=" in address:  # which the redirection takes away with what stands behind it
        tab.evaluate("page => { location.hash = `page=${page}`; }", page)
    tab.wait_for_function(_READY, arg=page, timeout=_PATIENCE_MS)
    return tab


def measure(events: int, folder: Path) -> None:
    """Prints all figures."""
    from playwright.sync_api import sync_playwright

    path, report = folder / "trace.parquet", folder / "report.html"
    make(events, path)
    seconds, (process, address) = timed(lambda: listening(path))
    tell("view until it listens", seconds, "s")
    with sync_playwright() as running:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.new_page().close()  # the browser's own start is not the viewer's
        seconds, tab = timed(lambda: opened(browser, address, "timeline"))
        tell("first full timeline from the server", seconds, "s")
        frames = sorted(tab.evaluate(_FRAMES, FRAMES))
        tell("frame of a zoom, median", statistics.median(frames), "ms")
        tell("frame of a zoom, 95 %", frames[int(0.95 * len(frames))], "ms")
        tell("slices drawn", tab.evaluate("window.tessera.timeline.parts[0].data.head.n"), "")
        tell("server's peak memory", peak_mb(process.pid), "MB")
        tab.close()
        process.terminate()
        process.wait()
        command = "from tessera.cli.prof import main; main()"
        arguments = [sys.executable, "-c", command, "html", str(path), "-o", str(report)]
        seconds, _ = timed(lambda: subprocess.run(arguments, check=True, capture_output=True))
        tell("tessera-prof html, with the start of Python", seconds, "s")
        tell("size of the report", report.stat().st_size / 1e6, "MB")
        seconds, _ = timed(lambda: opened(browser, report.as_uri(), "timeline"))
        tell("report in one file opened at its timeline", seconds, "s")
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        measure(int(sys.argv[1]), Path(place))
