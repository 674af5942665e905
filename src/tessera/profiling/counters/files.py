"""Small files of /proc and /sys that are read again and again, by descriptors that stay open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Self


class PolledFile:
    """One file; `read()` gives what it holds now, without opening it anew (a few microseconds saved each time)."""

    __slots__ = ("_size", "descriptor")

    def __init__(self, path: Path | str, size: int = 4096) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    @classmethod
    def try_open(cls, path: Path | str) -> Self | None:
        """The file, or None where it is not there or may not be read."""
        with contextlib.suppress(OSError):
            return cls(path)
        return None

    def read(self) -> bytes:
        """All that the file holds, up to its size. Raises OSError (ESRCH) when the process is gone."""
        return os.pread(self.descriptor, self._size, 0)

    def number(self) -> float:
        """The first number in the file; NaN where there is none, as of a sensor that is switched off."""
        try:
            return float(os.pread(self.descriptor, 64, 0).split(None, 1)[0])
        except (OSError, ValueError, IndexError):
            return float("nan")

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)


def text(path: Path) -> str | None:
    """The stripped text of a small file, None where it is not there or may not be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def why_unreadable(path: Path) -> str:
    """Why a file cannot be opened: the system's own words."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path}: readable"


def readable(path: Path) -> bool:
    """Whether it can be opened and read: /proc grants opening some files that it then refuses to read."""
    try:
        if path.is_dir():
            return bool(os.listdir(path))
        with path.open("rb") as file:
            return bool(file.read(16))
    except OSError:
        return False


def labelled(content: bytes, label: bytes) -> int:
    """The number after a label at the beginning of a line. Raises ProcessLookupError where the label is missing, as in
    the files of a process that has ended.
    """
    begin = (b"\n" + content).find(b"\n" + label)
    if begin < 0:
        raise ProcessLookupError(f"no {label.decode()} any more")
    return int(content[begin + len(label) :].split(None, 1)[0])
