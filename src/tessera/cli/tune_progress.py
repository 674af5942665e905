"""The progress bar of `tessera tune`: trials, the best so far, the time left, and what is being tried."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tessera.tuning.explanation import duration
from tessera.tuning.interfaces import Progress as TuningProgress


class TuningBar:
    """One bar for the kernel that is tuned, and where there are several one for all of them.

    `budget_s` are the seconds that the first kernel may take. Use it as a context manager; what it drew is gone
    afterwards.
    """

    def __init__(
        self, console: Console, budget_s: float, kernels: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[best]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[trying]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._clock = clock
        empty: dict[str, Any] = {"best": "", "left": "", "trying": ""}
        self._all: TaskID | None = self._bar.add_task("kernels", total=kernels, **empty) if kernels > 1 else None
        self._task = self._bar.add_task("preparing", total=None, **empty)
        self._begun = 0
        self.next("preparing", budget_s)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def next(self, label: str, budget_s: float) -> None:
        """Another kernel is tuned from now on, for at most `budget_s` seconds."""
        self._begin, self._budget_s = self._clock(), budget_s
        self._bar.reset(self._task, total=None, description=label, best="", left=_left(budget_s), trying="")
        if self._all is not None:
            self._bar.update(self._all, completed=max(self._begun - 1, 0))
        self._begun += 1

    def show(self, progress: TuningProgress) -> None:
        """Draws how far the search is; a `ProgressHook`."""
        best = f"best {duration(progress.best_s)}" if math.isfinite(progress.best_s) else ""
        left = self.left_s(progress.done, progress.limit)
        self._bar.update(
            self._task,
            description=progress.subject,
            total=progress.limit,
            completed=progress.done,
            best=best,
            left=_left(left),
            trying=f"trying {progress.trying}" if progress.trying is not None else "finals",
        )

    def left_s(self, done: int, limit: int) -> float:
        """Seconds that the search goes on at most: what the budget leaves, or less where the trials end before."""
        elapsed = self._clock() - self._begin
        by_trials = elapsed / done * (limit - done) if done else math.inf
        return max(min(self._budget_s - elapsed, by_trials), 0.0)


def _left(seconds: float) -> str:
    return f"{seconds:.0f} s left"
