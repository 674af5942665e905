"""The site is built without a warning, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.site import links
from tools.site.__main__ import build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
"""What Sphinx will not have any more is for those who write its extensions to know."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site."""
    folder = tmp_path_factory.mktemp("site") / "html"
    assert build(folder) == []
    return folder


def test_every_page_is_there_and_says_what_it_is_about(site: Path) -> None:
    products = (site / "reference" / "operators" / "products.html").read_text()
    assert "op.int8_linear(" in re.sub(r"<[^>]*>", "", products)  # without the spans of its colours
    assert 'href="../../errors.html#e-shape-mismatch"' in products
    assert 'id="e-shape-mismatch"' in (site / "errors.html").read_text()
    assert "gpt2_block" in (site / "gallery" / "index.html").read_text()
    assert "TESSERA_THREADS" in (site / "reference" / "environment.html").read_text()
    assert "tessera cache export" in (site / "reference" / "commands.html").read_text()


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text('<a href="two.html#here">x</a><a href="two.html#there">x</a><img src="no.png">')
    (tmp_path / "two.html").write_text('<p id="here">x</p><a href="https://example.org/">x</a>')
    assert list(links.broken(tmp_path)) == [
        "one.html: two.html#there: no such place",
        "one.html: no.png: no such file",
    ]
