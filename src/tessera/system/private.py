"""Folders that only this user, or root, can write: where machine code may be loaded from.

A digest says that a file is whole, not who wrote it: whoever can write the file can write the digest, too. So what will
run is read from files and folders whose owner and mode are looked at on the opened descriptor, which nobody can put
another file behind, and whatever stands there is neither followed nor waited for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import CacheFormatError, CacheUntrustedError
from tessera.system.files import limited, replacing

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


class CacheRefusedWarning(UserWarning):
    """A file in a cache is not used, for the reason that the text says; what it should hold is made anew."""


class PrivateFolder:
    """Files by name in a folder that is this user's alone, or root's. What is refused is warned about once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False

    def find(self, name: str, limit: int) -> bytes | None:
        """The bytes of a file; None where there is none, where it cannot be read, or where `read` refuses it."""
        try:
            return self.read(name, limit)
        except (CacheUntrustedError, CacheFormatError) as error:
            self.refuse(error)
        except OSError:
            pass
        return None

    def refuse(self, error: CacheUntrustedError | CacheFormatError) -> None:
        """Warns, once for this folder, of a file that is not used."""
        if not self._warned:
            self._warned = True
            warnings.warn(str(error), CacheRefusedWarning, stacklevel=4)

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file. Raises CacheUntrustedError (E_CACHE_UNTRUSTED) where somebody else can write the file or
        the folder, and for what is no regular file; CacheFormatError for more than `limit` bytes; OSError as `open`.
        """
        with _opened(self.path, self.path, _FOLDER) as folder:
            path = self.path / name
            with _opened(name, path, _FILE, folder) as descriptor, open(descriptor, "rb", closefd=False) as stream:
                return limited(stream, path, limit)

    def write(self, name: str, data: bytes) -> None:
        """Puts a file there, whole or not at all, which only this user can read. The folder is made where it is
        missing. Raises CacheUntrustedError where it is somebody else's too, OSError where it cannot be written.
        """
        self.make()
        with replacing(self.path / name, durable=False, mode=0o600) as file:
            file.write(data)

    def make(self) -> None:
        """Makes the folder where it is missing, for this user alone (0700) whatever the umask, and those above it.

        Raises as `write`.
        """
        _make(self.path, 0o700)
        self.require()

    def require(self) -> None:
        """Raises CacheUntrustedError where somebody else can write the folder, OSError where there is none."""
        with _opened(self.path, self.path, _FOLDER):
            pass


def own_folder(path: Path) -> Path:
    """`path` where it can be a `PrivateFolder`; else, as in a cache folder that a team shares, the one beside it that
    bears this user's number.
    """
    try:
        with _opened(path, path, _FOLDER):
            return path
    except PermissionError:  # CacheUntrustedError among them
        return path.with_name(f"{path.name}-{os.geteuid()}")
    except OSError:  # it can be made, or what stands in the way is told when that is tried
        return path


@contextlib.contextmanager
def _opened(name: str | Path, path: Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """A descriptor of `path`, which is `name` in `folder`, once it is known that nobody else can write there."""
    wanted = stat.S_IFDIR if flags & os.O_DIRECTORY else stat.S_IFREG
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        # A link, a file in the folder's place, a socket: say so. Nothing can be read through what lstat sees.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO) and os.path.lexists(path):
            _require(os.lstat(path), path, wanted)
        raise
    try:
        _require(os.fstat(descriptor), path, wanted)
        yield descriptor
    finally:
        os.close(descriptor)


def _require(status: os.stat_result, path: Path, wanted: int) -> None:
    """Raises CacheUntrustedError for what is of another kind, or can be written by others."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != wanted:
        objection = f"it is {_KINDS.get(kind, 'something else')}, where {_KINDS[wanted]} is meant"
    elif status.st_uid not in (0, os.geteuid()):
        objection = f"it belongs to user {status.st_uid}"
    elif status.st_mode & _OTHERS_WRITE:
        objection = f"others can write it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise CacheUntrustedError(
        f"{path} is not used: {objection}, and what lies there would run",
        hints=["remove it, or set TESSERA_CACHE_DIR to a folder of your own"],
    )


def _make(folder: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(folder, mode)
        except FileNotFoundError:
            _make(folder.parent, 0o775)  # a team may share schedules there, nobody else's files
            os.mkdir(folder, mode)
