"""Files that profiles are exported to: whole or not at all, also when two sessions write one."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from tessera.errors import ProfileError
from tessera.system.files import replacing

_MOST_LINKS = 40
"""Linux's own limit (path_resolution(7))."""
_FAST = 1
"""Of gzip's levels: a trace shrinks tenfold with it; the best level takes ten times as long for a third less."""


@contextlib.contextmanager
def exported(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file to write `what` into; it takes the place of `path` when the block ends. A name that ends in `.gz` has it
    compressed. A pipe or device is written to as it is.

    Raises ProfileError when it cannot be written; then what stood at `path` still does.
    """
    try:
        with _opened(path) as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_FAST, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
    except OSError as error:
        raise ProfileError(
            f"the {what} could not be written to {path}: {error.strerror or error}",
            hints=["the folder must exist, be writable and have room"],
        ) from error


def _opened(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    if path.exists() and not path.is_file():
        return path.open("wb")
    # Waiting for the disk would take longer than all the rest.
    return replacing(_followed(path), durable=False)


def _followed(path: Path) -> Path:
    """What is replaced: not a link, but what it points to. Raises PermissionError for a link that another user made: it
    would choose one of this user's files.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path.resolve()
        if os.lstat(path).st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{path} is a link of another user's, which is not followed")
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
