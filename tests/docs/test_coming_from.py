"""docs/coming-from/: every row of the tables runs; of PyTorch's, where the page says so, both cells give the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tessera
from tests.docs.snippets import ROOT, run_all, snippets

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
SAME = "## The same values"


def tables(page: Path) -> dict[str, list[tuple[str, str]]]:
    """The first two cells of the rows of a page's tables, by the section that they stand in."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in page.read_text().splitlines():
        section = line if line.startswith("## ") else section
        if line.startswith("| ") and not line.startswith("| --- "):
            first, second = (cell.strip() for cell in line.split(" | ")[:2])
            found.setdefault(section, []).append((first.removeprefix("| "), second.removesuffix(" |")))
    return {section: rows[1:] for section, rows in found.items()}  # without headings


def code(cell: str) -> str:
    """The code of a cell, which is nothing else."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    assert match, f"{cell} is no code"
    return match[1]


def given(text: str, names: dict[str, Any]) -> Any:
    """The value of an expression; None of a statement, which is run. What is pending is computed."""
    try:
        expression = compile(text, "<row>", "eval")
    except SyntaxError:
        exec(text, names)
        return None
    value = eval(expression, names)
    return value.torch() if isinstance(value, tessera.Tensor) and "mesh" not in text else value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_of_a_page_runs(page: Path) -> None:
    found = tables(page)
    assert sum(map(len, found.values())) >= 12
    for section, rows in found.items():
        for first, second in rows:
            names = run_all(snippets(page)[:1])
            value = given(code(second), names)
            if section == SAME:
                expected = given(code(first), names)
                torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4, check_dtype=False)
            else:
                assert value is not None or " = " in second or "(" in second


def test_the_page_of_cuda_has_every_row_of_the_guide() -> None:
    page = (ROOT / "docs" / "coming-from" / "cuda.md").read_text().lower()
    guide = (
        "tune thread and block size",
        "shared memory tiling",
        "overlap by streams",
        "kernel fusion",
        "nvlink and nccl tuning",
    )
    assert [row for row in guide if row not in page] == []
