"""Regions: which ones are open in a context, and to which one belongs what a thread does.

A region belongs to the context that entered it (`contextvars`): a thread's, or an asyncio task's and that of whatever
the task starts. As several contexts take turns on one thread, a region's beginning and end do not say what ran in it;
so a session notes whenever a thread is seen to go on in another region (`Presence`): at the edges of regions and, once
contexts take turns anywhere in the process, before plans run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeAlias


class RegionEvent(NamedTuple):
    """A region that has ended: its name, the thread that left it, and its times in nanoseconds of
    `time.monotonic_ns`.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int


class Presence(NamedTuple):
    """From this instant of `time.monotonic_ns` on, what a thread does belongs to the region `name`, or to none."""

    thread: int
    instant_ns: int
    name: str | None


class EnteredRegion:
    """A region that was entered once."""

    __slots__ = ("is_open", "name", "outer", "start_ns", "thread")

    def __init__(self, name: str, outer: EnteredRegion | None) -> None:
        self.name, self.outer, self.is_open = name, outer, True
        self.thread = threading.get_ident()
        self.start_ns = time.monotonic_ns()


current: Final[ContextVar[EnteredRegion | None]] = ContextVar("tessera_region", default=None)
"""The innermost region that the context has entered; one that ended elsewhere may still stand here."""


def open_of(scope: EnteredRegion | None) -> EnteredRegion | None:
    """The innermost region around, this one included, that has not ended: a task may outlive where it was started."""
    while scope is not None and not scope.is_open:
        scope = scope.outer
    return scope


_tops: Final[dict[int, EnteredRegion]] = {}
"""By thread, what it entered last, whichever context that was."""


_open: Final[dict[EnteredRegion, None]] = {}


def still_open() -> list[EnteredRegion]:
    """The regions of all contexts that have not ended, in the order in which they were entered."""
    return list(_open)


def enter(name: str) -> EnteredRegion:
    """The calling context enters a region."""
    scope = EnteredRegion(name, open_of(current.get()))
    current.set(scope)
    _tops[scope.thread] = scope
    _open[scope] = None
    return scope


def leave(scope: EnteredRegion) -> None:
    """A region ends. The calling context need not be the one that entered it."""
    scope.is_open = False
    _open.pop(scope, None)
    around = open_of(current.get())
    current.set(around)
    if around is None:
        _tops.pop(threading.get_ident(), None)
    else:
        _tops[threading.get_ident()] = around


def contexts_take_turns() -> bool:
    """Whether the calling thread shows that a region is not all that runs between its beginning and its end: asyncio
    runs here, or the thread is not in the region that it entered last.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    return open_of(current.get()) is not _tops.get(threading.get_ident())


Place: TypeAlias = int | EnteredRegion | tuple[int, EnteredRegion]
"""Where something is done: in a thread outside of regions, in a region by the thread that entered it, or by another."""


def place_of(thread: int, scope: EnteredRegion | None) -> Place:
    """The place of a thread that is in a region, or in none."""
    if scope is None:
        return thread
    return scope if scope.thread == thread else (thread, scope)


def place() -> Place:
    """Where the caller is."""
    scope, thread = current.get(), threading.get_ident()
    if scope is None:  # as `place_of`, which would cost another call for every operator
        return thread
    return scope if scope.thread == thread else (thread, scope)


def parts_of(place: Place) -> tuple[int, EnteredRegion | None]:
    """The thread and the region of a place."""
    if isinstance(place, int):
        return place, None
    return (place.thread, place) if isinstance(place, EnteredRegion) else place


_UNSEEN: Final = object()

Look = Callable[..., None]
"""Notes, if the calling thread is in another region than it was seen in last, that it is since an instant (None:
now).
"""


def watcher(note: Callable[[Presence], None]) -> Look:
    """Makes the function that looks where threads are. What is open on a thread now is noted at once, as the thread may
    run much before it is looked at; and so is what its first look finds, unless that is the same.
    """
    get_scope, get_thread = current.get, threading.get_ident
    seen: dict[int, EnteredRegion | object | None] = {}
    last: tuple[EnteredRegion | object | None, int] = (
        _UNSEEN,
        0,
    )  # one object, as other threads read it while it changes

    def look(instant_ns: int | None = None) -> None:
        nonlocal last
        scope = get_scope()
        if scope is not None and not scope.is_open:
            scope = open_of(scope)
        thread = get_thread()
        last_scope, last_thread = last
        if scope is last_scope and thread == last_thread:  # the common case, as this precedes every run of a plan
            return
        last = scope, thread
        if scope is not seen.get(thread, _UNSEEN):
            seen[thread] = scope
            since = time.monotonic_ns() if instant_ns is None else instant_ns
            note(Presence(thread, since, None if scope is None else scope.name))

    now = time.monotonic_ns()
    for thread, scope in list(_tops.items()):  # copied at once: the threads go on meanwhile
        open_scope = open_of(scope)
        if open_scope is not None and seen.setdefault(thread, open_scope) is open_scope:
            note(Presence(thread, max(now, open_scope.start_ns), open_scope.name))
    return look
