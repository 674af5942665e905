"""Regions: names for what a thread does inside a `with` block."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tessera.profiling import ranges, sessions
from tessera.profiling.noted import text


class region:  # noqa: N801 - a context manager that reads as a verb, as users write it
    """Names what the calling thread does inside the `with` block. Costs next to nothing when no session is on.

    Results made before the block and inside it are evaluated at its beginning and at its end, so that each is recorded
    where it was made.
    """

    __slots__ = ("_name", "_ranges", "_start_ns")

    def __init__(self, name: str) -> None:
        self._name = text(name)
        self._ranges = ranges.emitter()
        self._start_ns = 0

    def __enter__(self) -> Self:
        sessions.flush()
        if self._ranges is not None:
            self._ranges.push(self._name)
        self._start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                sessions.flush()
        finally:
            if self._ranges is not None:
                self._ranges.pop()
        sessions.note_region(self._name, self._start_ns)
