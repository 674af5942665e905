"""The figures in README.md and docs/benchmarks.md are those of the runs in bench/results/.

`pytest tests/docs/test_figures.py --update-goldens` rewrites them after a run was kept.
"""

from __future__ import annotations

import pytest

from tests.docs.snippets import ROOT
from tools.site import figures


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_the_figures_of_a_page_are_those_of_the_runs(name: str, request: pytest.FixtureRequest) -> None:
    page = ROOT / name
    text = figures.inserted(page.read_text())
    if request.config.getoption("--update-goldens"):
        page.write_text(text)
    assert figures.runs()
    assert "<!-- figures -->" in text
    assert text == page.read_text(), f"{name} is out of date: pytest tests/docs/test_figures.py --update-goldens"


def test_a_case_in_which_another_is_faster_is_listed() -> None:
    case = figures.Case("product", ours=1.0, torch=1.5, best=0.5, best_name="peer")
    other = figures.Case("sum", ours=1.0, torch=2.0, best=0.99, best_name="peer")
    run = figures.Run("machine", "2026-11-22", "gemm", 1, (case, other))
    assert run.behind == [case]
    assert figures.mean([case.ratio, 2.0]) == 1.0
