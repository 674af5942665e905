"""Texts can be read in both themes: contrast of the style sheet's colours, as WCAG 2.1 section 1.4.3 counts it."""

from __future__ import annotations

import re

import pytest

from tessera.viewer import assets

LEAST = 4.5
"""Level AA, of text below 18 points."""
ON_PAGE = ("text", "faint", "link", "bad", "mark")
ON_PANEL = ("text", "faint", "link", "bad")


def themes() -> list[dict[str, str]]:
    """The colours of the light theme and of the dark one, by name."""
    style = assets.files()["app.css"].decode()
    return [dict(re.findall(r"--(\w+): #(\w{6})", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", style)]


def luminance(color: str) -> float:
    """Relative luminance, 0 to 1."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1 (the same) to 21 (black on white)."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_is_the_most() -> None:
    assert contrast("000000", "ffffff") == pytest.approx(21)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(theme: int) -> None:
    colors = themes()[theme]
    pairs = [(name, "page") for name in ON_PAGE] + [(name, "panel") for name in ON_PANEL] + [("page", "select")]
    found = {pair: contrast(colors[pair[0]], colors[pair[1]]) for pair in pairs}
    assert {pair: value for pair, value in found.items() if value < LEAST} == {}
