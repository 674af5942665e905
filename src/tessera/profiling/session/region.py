"""Regions as users write them: names for what a thread, or a task, does inside a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tessera.profiling.recording import instrumentation, ranges, regions
from tessera.profiling.recording.regions import EnteredRegion
from tessera.profiling.recording.texts import text
from tessera.profiling.session import sessions


class region:  # noqa: N801 - a context manager that reads as a verb, as users write it
    """Names what the calling thread or asyncio task does inside the `with` block, also across an `await`; and what the
    tasks and threads do that it starts there and that take over its context, as those of `create_task`, `gather` and
    `to_thread` do, until the block ends. Costs next to nothing when no session is on.

    Results made before the block and inside it are evaluated at its beginning and at its end, so that each is recorded
    where it was made.
    """

    __slots__ = ("_name", "_opened", "_ranges")

    def __init__(self, name: str) -> None:
        self._name = text(name)
        self._ranges = ranges.emitter()
        self._opened: list[EnteredRegion] = []  # one object may be entered by several tasks at once

    def __enter__(self) -> Self:
        if not instrumentation.follows_contexts and regions.contexts_take_turns():
            sessions.follow_contexts()
        sessions.flush()
        if self._ranges is not None:
            self._ranges.push(self._name)
        scope = regions.enter(self._name)
        self._opened.append(scope)
        instrumentation.look(scope.start_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = self._entered_here()
        try:
            if kind is None:
                sessions.flush()
        finally:
            if self._ranges is not None:
                self._ranges.pop()
            sessions.hand_out(scope)
            instrumentation.note_region(scope)
            regions.leave(scope)
            instrumentation.look()

    def _entered_here(self) -> EnteredRegion:
        """Takes out what this context entered last; or anybody, as a generator may be closed in another context."""
        scope = regions.current.get()
        while scope is not None and scope not in self._opened:
            scope = scope.outer
        found = self._opened[-1] if scope is None else scope
        self._opened.remove(found)
        return found
