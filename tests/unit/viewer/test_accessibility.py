"""axe-core finds nothing serious on any page, in both themes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.unit.viewer.browsing import PAGES, PATIENCE_MS, Show
from tests.unit.viewer.made import whole_run

PACKAGE = importlib.util.find_spec("axe_playwright_python")
SERIOUS = ("serious", "critical")
RULES = "async (more) => (await axe.run(document, { resultTypes: ['violations'], ...more })).violations"
CONTRAST = {"runOnly": ["color-contrast", "button-name"]}
"""What may differ in a second theme, and what is broken on purpose."""
WITHOUT_TEXT = "document.querySelector('main').append(document.createElement('button'))"


def axe() -> str:
    """axe-core's script, which the package holds."""
    if PACKAGE is None or PACKAGE.origin is None:
        pytest.skip("axe-playwright-python is not installed (the extra dev has it)")
    return (Path(PACKAGE.origin).parent / "axe.min.js").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_on_any_page(show: Show, theme: str) -> None:
    script = axe()
    shown = show(whole_run(), whole_run())
    shown.page.emulate_media(color_scheme=theme)
    shown.page.reload()
    shown.page.evaluate(script)
    rules = CONTRAST if theme == "dark" else {}
    found = {}
    for page in PAGES:
        shown.open(page, run=0, b=1, kernel="matmul")
        if page == "kernels":
            shown.page.locator("svg").first.wait_for(timeout=PATIENCE_MS)
        for told in shown.page.evaluate(RULES, rules):
            if told["impact"] in SERIOUS:
                found[page, told["id"]] = [node["html"][:200] for node in told["nodes"][:3]]
    assert found == {}
    shown.page.evaluate(WITHOUT_TEXT)
    assert "button-name" in {told["id"] for told in shown.page.evaluate(RULES, rules)}
