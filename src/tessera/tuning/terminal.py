"""How far a search is, in one line of a terminal that is written over: what `autotune` shows where nobody asked for
anything else. Nothing is written where standard error is no terminal.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.tuning.explanation import duration
from tessera.tuning.interfaces import Progress, ProgressHook

_ERASE = "\r\x1b[K"


@contextmanager
def shown(hook: ProgressHook | None, wanted: bool = True) -> Iterator[ProgressHook | None]:
    """The hook that is given, else one that writes the line, which is gone afterwards; None where nothing is shown."""
    if hook is not None or not wanted or not sys.stderr.isatty():
        yield hook
        return
    stream = sys.stderr

    def write(progress: Progress) -> None:
        width = max(shutil.get_terminal_size().columns - 1, 1)
        stream.write(_ERASE + _line(progress)[:width])
        stream.flush()

    try:
        yield write
    finally:
        stream.write(_ERASE)
        stream.flush()


def _line(progress: Progress) -> str:
    best = f", best {duration(progress.best_s)}" if math.isfinite(progress.best_s) else ""
    return f"tuning {progress.subject}: {progress.done} of {progress.limit}{best}; Ctrl-C keeps what was found"
