"""How far a search is, in one line of a terminal or of a notebook that is written over: what `autotune` shows where
nobody asked for anything else. Nothing is written where standard error is neither.
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
_NOTEBOOK_COLUMNS = 100
"""Characters of a notebook's line: its pages go back to the start of a line, and erase nothing."""


@contextmanager
def shown(hook: ProgressHook | None, wanted: bool = True) -> Iterator[ProgressHook | None]:
    """The hook that is given, else one that writes the line, which is gone afterwards; None where nothing is shown."""
    stream = sys.stderr
    in_notebook = type(stream).__module__.startswith("ipykernel")
    if hook is not None or not wanted or not (in_notebook or stream.isatty()):
        yield hook
        return
    erase = f"\r{' ' * _NOTEBOOK_COLUMNS}\r" if in_notebook else _ERASE

    def write(progress: Progress) -> None:
        width = _NOTEBOOK_COLUMNS if in_notebook else max(shutil.get_terminal_size().columns - 1, 1)
        stream.write(erase + _line(progress)[:width])
        stream.flush()

    try:
        yield write
    finally:
        stream.write(erase)
        stream.flush()


def _line(progress: Progress) -> str:
    best = f", best {duration(progress.best_s)}" if math.isfinite(progress.best_s) else ""
    return f"tuning {progress.subject}: {progress.done} of {progress.limit}{best}; Ctrl-C keeps what was found"
