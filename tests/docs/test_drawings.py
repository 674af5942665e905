"""The drawings of the architecture are those that the tool makes, and name files that are there."""

from __future__ import annotations

import pytest

from tests.docs.snippets import ROOT
from tools.site.drawings import ARROWS, DRAWINGS, IMAGES, svg


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_of_today(name: str) -> None:
    assert (IMAGES / f"{name}.svg").read_text() == svg(name), "python -m tools.site.drawings"
    boxes = {(i, j): box for i, row in enumerate(DRAWINGS[name]) for j, box in enumerate(row) if box is not None}
    assert {place for arrow in ARROWS[name] for place in arrow} == set(boxes)
    for _, places in boxes.values():
        assert [place for place in places.split() if not (ROOT / "src" / "tessera" / place).exists()] == []
