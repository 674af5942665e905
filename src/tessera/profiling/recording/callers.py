"""Python stacks of the places where operators were made, for sessions that ask for them (`with_stack=True`)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import numpy
from numpy.typing import NDArray

DEEPEST: Final = 64
_OWN: Final = __name__.partition(".")[0]


class Callers:
    """When each thread made operators, and the stack it did it with. Each note costs a walk over the stack."""

    def __init__(self) -> None:
        self._notes: dict[int, list[tuple[int, str]]] = {}

    def note(self) -> None:
        """Notes the caller's stack, without frames of this package."""
        own = self._notes.setdefault(threading.get_ident(), [])
        text = stack_text(sys._getframe(1))
        if not own or own[-1][1] != text:
            own.append((time.monotonic_ns(), text))

    def codes(
        self, threads: NDArray[numpy.int64], starts: NDArray[numpy.int64]
    ) -> tuple[NDArray[numpy.uint32], list[str | None]]:
        """For each kernel, by its thread and start: the place, in the list, of the stack that its thread made an
        operator with last; the last one, None, is that of kernels before any.
        """
        found = {thread: list(notes) for thread, notes in self._notes.items()}
        texts = list(dict.fromkeys(text for notes in found.values() for _, text in notes))
        place = {text: number for number, text in enumerate(texts)}
        codes = numpy.full(len(starts), len(texts), numpy.uint32)
        for thread, notes in found.items():
            mine = threads == thread
            numbers = numpy.array([len(texts), *[place[text] for _, text in notes]], numpy.uint32)
            instants = numpy.array([instant for instant, _ in notes])
            codes[mine] = numbers[numpy.searchsorted(instants, starts[mine], side="right")]
        return codes, [*texts, None]


def stack_text(frame: FrameType | None) -> str:
    """ "file:line function" of the frames from the outermost to this one, joined with ";", those of this package left
    out.
    """
    frames: list[str] = []
    while frame is not None and len(frames) < DEEPEST:
        code = frame.f_code
        if frame.f_globals.get("__name__", "").partition(".")[0] != _OWN:
            frames.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(frames))


def together(calls: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """One call for all of these; None for none."""
    if len(calls) < 2:
        return calls[0] if calls else None

    def every() -> None:
        for call in calls:
            call()

    return every
