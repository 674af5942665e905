"""docs/benchmarking.md: the suites that it names are those that there are."""

from __future__ import annotations

import re

from bench.suites import SUITES
from tests.docs.snippets import ROOT


def test_the_page_names_every_suite_and_no_other() -> None:
    page = (ROOT / "docs" / "benchmarking.md").read_text()
    table = page.partition("| suite | what |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == {*SUITES, "all"}
