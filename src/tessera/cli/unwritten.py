"""Whether the winners that a command found or imported are on disk: its memory ends with the command."""

from __future__ import annotations

from pathlib import Path

from tessera.errors import CacheIOError


def require_written() -> Path:
    """The folder of the winners. Raises CacheIOError where some of this process's could not be written there."""
    from tessera import autotune  # which loads torch

    status = autotune.status()
    if lost := status.entries["memory"]:
        raise CacheIOError(
            f"{lost} of the winners could not be kept in {status.folder}: they are gone when this program ends",
            hints=["set TESSERA_CACHE_DIR to a folder that can be written", *status.problems[:1]],
        )
    return status.folder
