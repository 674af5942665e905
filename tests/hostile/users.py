"""Other users, and what they and a poor machine can do: helpers of the tests in this folder.

Tests of two users need root, who alone can give files away and become somebody else; tests of modes, pipes and limits
need nobody.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

STRANGER: Final = 65_534
"""A user that is neither root nor `COLLEAGUE`; Linux's "nobody"."""
COLLEAGUE: Final = 65_433

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can give files to another user")


def give(path: Path, user: int = STRANGER) -> Path:
    """Makes a file or folder another user's, as if that one had made it."""
    os.chown(path, user, user, follow_symlinks=False)
    return path


def as_user(user: int, action: Callable[[], Any], limit_s: int = 120) -> Any:
    """What `action` gives (a JSON value) in a fork that is run by `user`, whose umask is 022.

    AssertionError with its last words where it raises or takes longer than `limit_s`.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.alarm(limit_s)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.umask(0o022)
        status = 1
        try:
            os.write(writing, json.dumps(action()).encode())
            status = 0
        finally:
            if status:
                sys.excepthook(*sys.exc_info())
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the fork of user {user} ended with status {status}"
    return json.loads(text)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Another umask for a while."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Leaves `spare` descriptors that can still be opened: the next one fails with EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    while held[-1] < highest:  # so that there is none free below
        held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Files can grow to `nbytes` only, as on a disk that is about to be full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path]:
    """A file system of `nbytes` at `folder`; skips the test where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["mount", "-t", "tmpfs", "-o", f"size={nbytes},mode=0700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command mount")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def put(path: Path, kind: str) -> None:
    """Has something stand at `path` that is no file: a pipe, link, socket, folder or device."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "link":
        target = path.with_name("elsewhere")
        target.write_bytes(b"")
        path.symlink_to(target)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))  # /dev/null
        except PermissionError:
            pytest.skip("no device can be made here")


KINDS: Final = ("pipe", "link", "socket", "folder", "device")
