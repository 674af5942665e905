"""Reading cache files as what they are: bytes that anybody may have written.

A cache folder is copied between machines, shared by a team, unpacked from an archive. What is read is data and never
code, comes from a regular file (a link may lead anywhere, a pipe never ends), has a bounded size, and its JSON holds
neither NaN nor nesting that exhausts the stack.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.errors import CacheFormatError, CacheIOError
from tessera.system.files import limited

ENTRY_BYTES = 1 << 18
"""Most bytes of one entry, or of one line of a log; they take one or two thousand."""

FAMILY_BYTES = 1 << 26
"""Most bytes of a file with many entries of one family."""

EXPORT_BYTES = 1 << 29
"""Most bytes of an exported file: half a million entries."""

_LONGEST_TEXT = 4096


def read_named(path: Path, limit: int) -> bytes:
    """The bytes of what the user named: links are followed, and pipes read to their end.

    Raises E_CACHE_IO where it cannot be read, E_CACHE_FORMAT for more than `limit` bytes.
    """
    try:
        with path.open("rb") as stream:
            return limited(stream, path, limit)
    except OSError as error:
        raise CacheIOError(f"cannot read {path}: {error.strerror or error}") from error


def decode(data: bytes, name: str) -> Any:
    """The JSON value in `data`; E_CACHE_FORMAT where it is none, is nested too deeply or holds NaN or infinities."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CacheFormatError(f"{name} is damaged: {error}") from error


def printable(value: object) -> str:
    """A text of the cache that may be shown on a terminal and in a table.

    Raises ValueError for what is no text, is absurdly long, or holds control characters.
    """
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise ValueError(f"{str(value)[:40]!r} is no name")
    return value


def whole(value: object, least: int = 0) -> int:
    """An extent or a count; ValueError for anything but a whole number from `least` up that fits into 63 bits."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from {least} up")
    return value


def listed(value: object) -> Sequence[Any]:
    """A list; TypeError for what is none, as a text is, which could be walked as well."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{str(value)[:40]!r} is no list")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
