"""What notebooks show by themselves: a session as its report in a frame, a level of the compiler as its text."""

from __future__ import annotations

import html
import re

import torch

from tessera import op, profile
from tessera.analyze import Roofline, RooflinePoint
from tessera.scheduling.language.schedule import Schedule
from tessera.target import gpu
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
    assert re.fullmatch("<pre [^>]*>(.*)</pre>", shown, re.DOTALL)[1] == html.escape(text)  # type: ignore[index]
    assert isinstance(text, str)


def test_a_roofline_shows_its_picture_in_the_colors_of_the_page() -> None:
    points = (RooflinePoint("<b>mine</b>", 1e9, 1e6, 1e-3, "fp32"),)
    shown = Roofline(points, gpu("H100"))._repr_html_()
    picture, table = shown.split("</svg>")
    assert picture.startswith("<div><svg ")
    assert "currentColor" in picture
    assert not re.search("#000000|#333333|#ffffff", picture)
    assert "<b>mine" not in shown
    assert "&lt;b&gt;mine&lt;/b&gt;" in table
    assert len(picture) < 64 << 10


def test_a_schedule_shows_its_knobs() -> None:
    shown = Schedule(tile=(8, 16), order="'<'")._repr_html_()
    assert re.findall(r"<td[^>]*>([^<]*)</td>", shown) == ["tile", "(8,16)", "order", html.escape(repr("'<'"))]
