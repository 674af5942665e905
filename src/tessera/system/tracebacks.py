"""Tracebacks that end in the user's line: frames of this package are folded away where a program ends by an error of
Tessera. `TESSERA_TRACEBACK=full` leaves them.

Only what Python prints as it ends is changed (`sys.excepthook`). Debuggers, loggers and tests see every frame.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final

from tessera import settings
from tessera.errors import TesseraError, is_own_frame

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

NOTE: Final = "({count} frames inside of Tessera are not shown: TESSERA_TRACEBACK=full shows them)"


def install() -> None:
    """Has uncaught errors of Tessera printed without its own frames, by the hook that there is."""
    before = sys.excepthook
    if getattr(before, "folds", False):
        return

    def hook(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> Any:
        if isinstance(error, TesseraError) and settings.current().traceback == "short":
            place = fold(error)
        return before(kind, error, place)

    hook.folds = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def fold(error: BaseException) -> TracebackType | None:
    """Takes the package's own frames out of an error's traceback, and of those of its causes; says in a note how many
    they were. Gives the traceback that is left; it is as it was where nothing of the user's would be left.
    """
    count = 0
    for each in _chain(error):
        kept = [frame for frame in _frames(each.__traceback__) if not is_own_frame(frame.tb_frame)]
        if not kept and each is error:
            return error.__traceback__
        count += len(list(_frames(each.__traceback__))) - len(kept)
        linked: TracebackType | None = None
        for frame in reversed(kept):
            linked = TracebackType(linked, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        each.__traceback__ = linked
    if count:
        error.add_note(NOTE.format(count=count))
    return error.__traceback__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what is printed above it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _frames(place: TracebackType | None) -> Iterator[TracebackType]:
    while place is not None:
        yield place
        place = place.tb_next
