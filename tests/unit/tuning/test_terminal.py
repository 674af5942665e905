"""The line that shows how far a search is: on a terminal alone, and gone afterwards."""

from __future__ import annotations

import io
import math
import sys

import pytest

from tessera.tuning import terminal
from tessera.tuning.interfaces import Progress


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


PROGRESS = Progress("matmul", 1, 8, math.inf, None)
LATER = Progress("matmul", 2, 8, 1.5e-3, None)


def test_a_terminal_shows_the_line_and_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", "60")
    with terminal.shown(None) as hook:
        assert hook is not None
        hook(PROGRESS)
        hook(LATER)
    first, second, last = out.getvalue().split("\r\x1b[K")[1:]
    assert first == "tuning matmul: 1 of 8; Ctrl-C keeps what was found"
    assert second == "tuning matmul: 2 of 8, best 1.5 ms; Ctrl-C keeps what was found"[:59]
    assert last == ""


def test_a_notebook_shows_the_line_and_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", out)
    with terminal.shown(None) as hook:
        assert hook is not None
        hook(PROGRESS)
    lines = out.getvalue().split("\r")
    assert lines[2] == "tuning matmul: 1 of 8; Ctrl-C keeps what was found"
    assert lines[3] == " " * 100
    assert lines[-1] == ""


def test_nothing_is_written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with terminal.shown(None) as hook:
        assert hook is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with terminal.shown(None, wanted=False) as hook:
        assert hook is None
    seen: list[Progress] = []
    with terminal.shown(seen.append) as hook:
        assert hook == seen.append
