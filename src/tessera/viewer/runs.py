"""Runs: the traces that a viewer shows, found in files and folders, read when they are asked for."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tessera.errors import ProfileError
from tessera.profiling.readers import parquet
from tessera.profiling.trace import reading
from tessera.profiling.trace.table import Trace

T = TypeVar("T")

PARQUET: Final = ".parquet"
_MOST_ANSWERS: Final = 64
"""Answers that a run remembers."""

_one_at_a_time = threading.RLock()
"""Held while a trace is read or analysed: polars uses all cores for one."""


class ChangedError(ProfileError):
    """The file of a run is another one than when it was read, or is gone."""


class Run:
    """One trace: a file, or a folder with the files of all ranks."""

    def __init__(self, name: str, read: Callable[[], Trace], paths: Sequence[Path] = ()) -> None:
        self.name = name
        self._read = read
        self._paths = tuple(paths)
        self._seen: object = None
        self._trace: Trace | None = None
        self._answers: dict[object, Any] = {}
        self.reads = 0
        """How often the files were read."""

    @property
    def key(self) -> object:
        """What tells runs apart: their names and files."""
        return (self.name, self._paths) if self._paths else self

    @property
    def version(self) -> str:
        """What is another text as soon as the files are others."""
        return str(self._state())

    def summary(self) -> dict[str, Any]:
        """What a list of runs says of it, as plain JSON: `started` (seconds since 1970), `duration_ns`, `recorded`,
        `dropped`, `ranks`, `device`; or `error`.
        """
        try:
            told = self.trace().metadata
        except ProfileError as error:
            return {"error": error.message, "hints": list(error.hints), "version": self.version}
        started = told.get("start_unix_ns")
        return {
            "started": started / 1e9 if isinstance(started, int) and started else None,
            "duration_ns": told.get("duration_ns"),
            "recorded": told.get("recorded"),
            "launched": told.get("launched"),
            "dropped_reasons": told.get("dropped_reasons", {}),
            "ranks": len(told.get("ranks") or {"0": {}}),
            "device": (told.get("target") or {}).get("name"),
            "source": told.get("source"),
            "clocks_us": self.trace().clocks_us(),
            "version": self.version,
        }

    def trace(self) -> Trace:
        """The trace. Raises ProfileError for a file that is none, ChangedError where it has changed since."""
        with _one_at_a_time:
            if self._trace is None:
                self._seen = self._state()
                self._trace = self._read()
                self.reads += 1
            elif self._state() != self._seen:
                raise ChangedError(f"{self.name} has changed since it was read", hints=["reload the page"])
            return self._trace

    def answer(self, key: object, make: Callable[[Trace], T]) -> T:
        """What `make` makes of the trace, made once: who asks meanwhile waits."""
        with _one_at_a_time:
            found = self.trace()
            if key not in self._answers:
                while len(self._answers) >= _MOST_ANSWERS:
                    del self._answers[next(iter(self._answers))]
                with reading.examined(self.name, found):
                    self._answers[key] = make(found)
            answer: T = self._answers[key]
            return answer

    def knows(self, key: object) -> bool:
        """Whether the answer to a question has been made."""
        with _one_at_a_time:
            return key in self._answers

    def renewed(self) -> None:
        """Forgets what was read where that has changed, so that the next question reads it again."""
        with _one_at_a_time:
            if self._trace is not None and self._state() != self._seen:
                self._trace, self._answers = None, {}

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_state_of(path) for path in self._paths]


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        told = os.stat(path)
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size, told.st_ino


def run_of(found: Trace, name: str) -> Run:
    """A run of a trace in memory."""
    return Run(name, lambda: found)


def runs_at(path: Path) -> list[Run]:
    """The runs at a path: a file is one, a folder with one file for each rank is one; in any other folder each file is
    one, and so is each folder of ranks below it. Raises ProfileError where there is none.
    """
    if not path.is_dir():
        return [_at(path, path.name)]
    found = list(_below(path, path.name or str(path)))
    if not found:
        raise ProfileError(
            f"{path} has no traces in it", hints=["profile.session(tensorboard_dir=...) writes them there"]
        )
    return found


def _below(folder: Path, name: str) -> Iterator[Run]:
    files = reading.files_in(folder)
    if files and (len(files) == 1 or _are_ranks(files)):
        yield Run(name, functools.partial(reading.read, folder, ordered=False), files)
    else:
        yield from (_at(file, f"{name}/{file.name}") for file in files)
    for below in sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()):
        yield from _below(below, f"{name}/{below.name}")


def _at(path: Path, name: str) -> Run:
    return Run(name, functools.partial(reading.read, path), [path])


def _are_ranks(files: Sequence[Path]) -> bool:
    """Whether files are the ranks of one run, or what one session spilled. Timelines of other profilers are taken for
    ranks, as `profile.read` does: what they say of theirs stands at their end.
    """
    if any(file.suffix != PARQUET for file in files):
        return True
    try:
        told = [parquet.read(file).metadata for file in files]
    except ProfileError:  # which is then shown at the run of this file
        return False
    if all("part" in each for each in told):
        return all(each.get("ranks") == told[0].get("ranks") for each in told)
    ranks = [number for each in told for number in each.get("ranks", {"0": {}})]
    return len(set(ranks)) == len(ranks)
