"""Ending a search by hand: `q` on the terminal, or Ctrl-C once, keeps the best so far; Ctrl-C twice aborts."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, Self


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement that the search does without."""


class Interruption:
    """While it is entered, `reason` says whether somebody asked for the end.

    Takes the first Ctrl-C where Python would raise KeyboardInterrupt, which the second then does; inside of
    `breaking_off` the first raises SearchInterrupted. A handler of the user's own is left in place. Reads keys where
    standard input is a terminal in whose foreground this process runs.
    Does neither in a thread that is not the main one, which gets no signals.
    """

    def __init__(self) -> None:
        self._asked = ""
        self._breaks_off = False
        self._terminal: int | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._asked = ""
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._ask)
            self._undo.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
        self._terminal = _foreground_terminal()
        if self._terminal is not None:
            saved = termios.tcgetattr(self._terminal)
            self._undo.callback(_restore, self._terminal, saved)
            tty.setcbreak(self._terminal)  # a key counts without Enter; Ctrl-C stays a signal
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()
        self._terminal = None

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """What runs in here may be left undone: it takes seconds, and who presses Ctrl-C does not wait for it."""
        if self._asked:
            raise SearchInterrupted
        self._breaks_off = True
        try:
            yield
        finally:
            self._breaks_off = False

    def reason(self) -> str:
        """Why to end, for people; empty while nobody asked."""
        if not self._asked and self._terminal is not None and b"q" in _typed(self._terminal).lower():
            self._asked = "q was pressed"
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = "Ctrl-C was pressed"
        if self._breaks_off:
            raise SearchInterrupted


def _foreground_terminal() -> int | None:
    """The descriptor of standard input where that is a terminal that this process may read and set."""
    try:
        descriptor = sys.stdin.fileno()
        mine = os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # there is none, it is closed, or it is no file
        return None
    return descriptor if mine else None


def _restore(descriptor: int, attributes: list[Any]) -> None:
    """Has a terminal work as it did before, unless it is gone: what was found is not lost with it."""
    with suppress(termios.error):
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


def _typed(descriptor: int) -> bytes:
    """What was typed since it was last asked; nothing where the terminal is gone, or another job reads from it by now:
    reading would stop this one.
    """
    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return b""
        ready, _, _ = select.select([descriptor], [], [], 0)
        return os.read(descriptor, 256) if ready else b""
    except OSError:
        return b""
