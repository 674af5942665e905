"""Folders that change as a whole: a checkpoint is written beside the old one, and takes its place at once."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Final

from tessera.errors import CheckpointError

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def beside(folder: Path) -> Path:
    """Where the next contents of a folder are written."""
    return folder.with_name(f".{folder.name}.written")


def cleared(folder: Path) -> None:
    """Removes what a save that was broken off has left, and makes room for the next.

    Raises CheckpointError (E_CHECKPOINT) where that cannot be.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise CheckpointError(f"{folder} is no folder")
        shutil.rmtree(beside(folder), ignore_errors=True)
        beside(folder).mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {error.strerror or error}") from error


def put_in_place(folder: Path) -> None:
    """What was written beside a folder becomes the folder: before, whoever looks finds the old contents, afterwards the
    new ones, also if this process is killed meanwhile or the machine goes down.

    Raises CheckpointError (E_CHECKPOINT) where the file system refuses it.
    """
    written = beside(folder)
    try:
        _sync(written)
        if folder.exists():
            _exchange(written, folder)
        else:
            written.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {error.strerror or error}") from error
    shutil.rmtree(written, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    """Each takes the place of the other, in one step."""
    code = _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (the file system cannot exchange two folders; save to a new one)")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
