"""The viewer in a real browser: skipped, with the reason, where there is none."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.profiling.trace.table import Trace
from tessera.viewer.app import Viewer
from tessera.viewer.runs import runs_at
from tessera.viewer.server import serving
from tests.unit.viewer.asking import viewer_of
from tests.unit.viewer.browsing import CHROMIUM, PATIENCE_MS, Show, Shown


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A browser for all tests of this folder."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra dev has it)")
    if CHROMIUM is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Show]:
    """Serves traces and opens them in a browser."""
    servers, contexts = [], []

    def opened(
        *traces: Trace, file: Path | None = None, folder: Path | None = None, max_bytes: float = math.inf
    ) -> Shown:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=file is not None)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        if file is not None:
            return Shown(context.new_page(), file.as_uri())
        viewer = viewer_of(*traces, max_bytes=max_bytes) if folder is None else Viewer(lambda: runs_at(folder))
        server, address = serving(viewer, "127.0.0.1", 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return Shown(context.new_page(), address)

    yield opened
    for context in contexts:
        context.close()
    for server in servers:
        server.shutdown()
        server.server_close()
