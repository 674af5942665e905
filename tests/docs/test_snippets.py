"""Every Python snippet of the README and the documentation runs, in the order in which a reader meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, run_all, snippets

PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if snippets(path)]
LISTINGS = {"errors.md"}
"""Pages whose snippets raise what they are about (`test_errors.py`)."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in LISTINGS], ids=lambda page: page.name)
def test_the_snippets_of_a_page_run_in_order(page: Path) -> None:
    names = run_all(snippets(page))
    assert len(names) > 1


def test_a_snippet_fails_where_its_page_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\nraise KeyError(x)\n```\n")
    with pytest.raises(KeyError) as failure:
        run_all(snippets(page))
    assert failure.traceback[-1].lineno + 1 == 5
    assert str(failure.traceback[-1].path) == str(page)


def test_a_fence_left_open_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n")
    with pytest.raises(ValueError, match=r"page\.md:2"):
        snippets(page)
