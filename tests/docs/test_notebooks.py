"""The notebooks of `examples/notebooks` run, cell by cell, and show HTML that reads on any page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.docs.notebooks import Cell, cells, shown
from tests.docs.snippets import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SMALL = 64 << 10
"""Characters of what a cell shows, of which a notebook's file keeps a copy."""

SHOWS = {
    "first_kernel.ipynb": ["pending: ", "<td", "Compilation(kernel=", "tessera.graph.matmul", "stay in registers"],
    "roofline.ipynb": ["<svg ", "Of the bound(%)", "these kernels ran on a CPU", "efficiency_pct"],
    "schedules.ipynb": ["Best config: tile=", ">knob</th>", "runner-up", "entries: "],
}
"""What the cells of a notebook show between them, in this order."""


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == sorted(SHOWS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_run_in_order_and_show_what_they_should(notebook: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = []
    for cell in cells(notebook):
        value = cell.run(names)
        if value is not None:
            pages.append(shown(value))  # at once, as a pending tensor may be computed by a later cell
    everything, place = "\n".join(pages), 0
    for wanted in SHOWS[notebook.name]:
        place = everything.find(wanted, place)
        assert place >= 0, f"{wanted!r} is not shown where it should be"
    for page in pages:
        assert len(page) < SMALL
        if page.startswith("<"):
            _Balanced().check(page)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_results(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_a_cell_says_where_it_failed() -> None:
    with pytest.raises(KeyError) as failure:
        Cell("x = 1\nraise KeyError(x)", "some.ipynb[3]").run({})
    assert str(failure.traceback[-1].path).endswith("some.ipynb[3]")
    assert failure.traceback[-1].lineno == 1


class _Balanced(HTMLParser):
    """Holds that elements close in the order in which they open, and that no script is among them."""

    def check(self, page: str) -> None:
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        assert tag != "script"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
