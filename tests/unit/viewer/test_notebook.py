"""What notebooks show by themselves: a session as its report in a frame, a level of the compiler as its text."""

from __future__ import annotations

import html
import re

import torch

from tessera import op, profile
from tests.unit.profiling.support import run, two_step_plan


def test_a_session_shows_itself_as_a_report_in_a_frame() -> None:
    with profile.session() as session:
        run(two_step_plan(), 2)
        assert session._repr_html_() is None
    shown = session._repr_html_()
    assert shown is not None
    (page,) = re.findall(r'sandbox="allow-scripts" .*srcdoc="([^"]*)"', shown)
    assert html.unescape(page).startswith("<!doctype html>")
    assert "add kernel" in page or "add" in page


def test_a_level_shows_itself_as_its_text() -> None:
    text = op.relu(torch.ones(4)).inspect("graph")
    shown = text._repr_html_()
    assert shown == f"<pre>{html.escape(text)}</pre>"
    assert isinstance(text, str)
