"""HTML for notebooks: text is escaped, and no color is fixed that a dark page would swallow."""

from __future__ import annotations

import re

from tessera.system import notebooks


def test_text_is_escaped() -> None:
    evil = "<script>alert('1')</script> & \"2\""
    for page in (
        notebooks.preformatted(evil),
        notebooks.table([[evil]], [evil], evil, [evil]),
    ):
        assert "<script" not in page
        assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt; &amp; &quot;2&quot;" in page


def test_colors_are_those_of_the_page() -> None:
    page = notebooks.preformatted("x") + notebooks.table([["1"]], ["a"], "t", ["n"])
    assert set(re.findall(r"(?<![-\w])color:([^;\"]*)", page)) == {"inherit"}
    assert set(re.findall(r"background:([^;\"]*)", page)) == {"none"}


def test_numbers_stand_to_the_right() -> None:
    page = notebooks.table([["a", "1"]], ["name", "value"], numeric=[False, True])
    assert re.findall(r"text-align:(\w+)", page) == ["left", "right"] * 2


def test_a_table_without_rows_has_its_title_and_notes() -> None:
    page = notebooks.table([], ["a"], "nothing", ["why"])
    assert "nothing" in page
    assert "why" in page
    assert "<table" not in page
