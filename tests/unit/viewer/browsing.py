"""A page of a real browser that shows the viewer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES: Final = ("overview", "kernels", "timeline", "roofline", "collectives", "counters", "code", "flame", "compare")
PATIENCE_MS: Final = 120_000


@dataclass
class Shown:
    """A page of a browser at an address of the viewer, and what went wrong in it."""

    page: Any
    address: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda told: self.said.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(self.address)

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(dialog.message)
        dialog.dismiss()

    def open(self, page: str, **state: object) -> None:
        """Shows a page with this state in its address."""
        self.page.evaluate("hash => { location.hash = hash; }", urlencode({"page": page, **state}))
        self.await_page(page)

    def await_page(self, page: str) -> None:
        """Waits until a page is shown."""
        ready = "page => document.querySelector('main')?.dataset.ready === page"
        self.page.wait_for_function(ready, arg=page, timeout=PATIENCE_MS)

    def rows(self, table: int = 0) -> list[list[str]]:
        """The cells of a table as they are shown."""
        rows = self.page.locator("table").nth(table).locator("tbody tr:not([aria-hidden])")
        return [row.locator("td").all_inner_texts() for row in rows.all()]


Show = Callable[..., Shown]
