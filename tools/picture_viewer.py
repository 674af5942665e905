"""Takes the pictures of the viewer's pages in the documentation: records GPT-2 twice, and opens the report in Chromium.

    python -m tools.picture_viewer docs/images

Needs playwright and a Chromium (`apt-get install chromium`), as the tests of the viewer do.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from examples import gpt2
from tessera import analyze, op, profile, settings
from tessera.viewer import one_file
from tessera.viewer.runs import Run, runs_at

TOKENS: Final = 64
STEPS: Final = 8
COLORS: Final = 200
PAGES: Final[dict[str, dict[str, Any]]] = {
    "overview": {},
    "kernels": {},
    "timeline": {},
    "roofline": {"b": 1},
    "collectives": {},
    "counters": {},
    "code": {},
    "flame": {},
    "compare": {"b": 1},
}
_PATIENCE_MS: Final = 120_000


def record(path: Path, threads: int) -> Run:
    """A run of the whole model: `STEPS` passes over `TOKENS` tokens, and a sum of logits over all ranks."""
    model, tokens = gpt2.random_model(), gpt2.random_tokens(TOKENS)
    weights = gpt2.constants_of(model)
    with settings.override(threads=threads):
        gpt2.logits(tokens, *weights, model.heads).eval()  # compiles
        exporters = [profile.parquet(path)]
        about = profile.session(activities=("cpu", "collective"), sample_interval_ms=10, exporters=exporters)
        with about as session:
            for _ in range(STEPS):
                with profile.region("forward"):
                    logits = gpt2.logits(tokens, *weights, model.heads).eval()
                with profile.region("reduce"):
                    op.all_reduce(logits.torch()).eval()
                session.step()
    (run,) = runs_at(path)
    return run


def main(folder: Path) -> None:
    """Writes a picture of each page."""
    analyze.machine()  # so that traces hold the ceilings
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as running:
        runs = [record(Path(place, f"threads-{threads}.parquet"), threads) for threads in (1, 2)]
        report = one_file.write(runs, Path(place, "report.html"), redact=True, with_code=True)
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.goto(report.as_uri())
        for name, state in PAGES.items():
            page.evaluate("hash => { location.hash = hash; }", urlencode({"page": name, "run": 0, **state}))
            ready = "page => document.querySelector('main')?.dataset.ready === page"
            page.wait_for_function(ready, arg=name, timeout=_PATIENCE_MS)
            page.wait_for_timeout(500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLORS)
            path = folder / f"viewer-{name}.png"
            picture.save(path, optimize=True)
            print(f"wrote {path}: {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
