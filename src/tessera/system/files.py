"""Cache files: written so that no reader sees half a file and nothing that was there is lost, and read as regular files
of a bounded size.

No locks: they are unreliable on network file systems and a killed process leaves them behind. `os.replace` is atomic
within a directory on every file system that homes live on, and a process appends only to a log of its own host,
because NFS has no atomic append between clients.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tessera.errors import CacheFormatError


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Puts `data` into `path`, whole or not at all. OSError when it cannot; then `path` is as it was.

    What can always be made anew need not be `durable`, that is survive a loss of power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to write, which the umask and `mode` let be read, that takes the place of `path` when the block ends, and
    leaves `path` as it was when the block raises. OSError when it cannot, as where the folder does not exist.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync_directory(path.parent)


def _sync_directory(folder: Path) -> None:
    # Some network file systems refuse to sync a directory: the file is complete then all the same.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_BYTES = 1 << 20


def append_lines(path: Path, lines: bytes) -> None:
    """Appends whole lines with one write, so that those of two processes do not mix. OSError when it cannot, as where
    `path` is a link or a pipe that nobody reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, _APPENDING, 0o644)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(errno.EPERM, f"{path} is no file, or has another name: nothing is appended to it")
        if os.write(descriptor, lines) != len(lines):
            os.write(descriptor, b"\n")  # a full disk cut the line: the next one must start afresh
            raise OSError(f"only a part of {len(lines)} bytes could be appended to {path}")
    finally:
        os.close(descriptor)


def keep_aside(path: Path) -> Path:
    """Gives what stands at `path` a second name, so that replacing it loses nothing; the name. OSError when it cannot,
    as where something else takes its place meanwhile.

    A link is kept as the link that it is. The same bytes get the same name, so that repeated damage does not fill the
    disk; what is longer than a cache file is known by its number and time.
    """
    status = os.lstat(path)
    small = stat.S_ISREG(status.st_mode) and status.st_size <= _READ_BYTES
    data = _still_regular(path) if small else f"{status.st_ino} {status.st_mtime_ns}".encode()
    aside = path.with_name(f"{path.name}.kept-{hashlib.sha256(data).hexdigest()[:12]}")
    try:
        os.link(path, aside, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError:
        if not small:
            raise
        write_atomically(aside, data)  # a file system without hard links
    return aside


def _still_regular(path: Path) -> bytes:
    try:
        return read_regular(path, _READ_BYTES)
    except CacheFormatError as error:
        raise OSError(errno.EAGAIN, error.message) from error


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a regular file for reading. Neither follows a link nor waits for a pipe.

    Raises E_CACHE_FORMAT for anything else that stands there, and OSError as `open`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if os.path.islink(path):
            raise CacheFormatError(f"{path} is a link, which is not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CacheFormatError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | Path, limit: int) -> bytes:
    """The bytes of a regular file; raises as `open_regular`, and E_CACHE_FORMAT for more than `limit` bytes."""
    with open_regular(path) as stream:
        return limited(stream, path, limit)


def limited(stream: BinaryIO, path: str | Path, limit: int) -> bytes:
    """All bytes of an open file, which `path` names in messages. Raises E_CACHE_FORMAT for more than `limit`."""
    # Sparse files claim terabytes: nothing is read of what is too large, and of what has no size no more than allowed.
    data = b"" if (size := os.fstat(stream.fileno()).st_size) > limit else stream.read(limit + 1)
    if max(size, len(data)) > limit:
        raise CacheFormatError(f"{path} has more than {limit} bytes, which no such file has")
    return data


def host_name() -> str:
    """This host's name as a part of a file name."""
    name = socket.gethostname().split(".")[0]
    return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name) or "host"
