"""Where a process listens: one socket in a folder of the user's own, named by process and start.

A process number is used again after its process ended, the number with the start time is not. The folder is the user's
alone (0700), and so is the socket (0600).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera import settings
from tessera.system.files import host_name

_NAME: Final = re.compile(r"(?:home-)?tessera-(\d+)-(\d+)\.sock")
_LONGEST: Final = 107
"""Bytes of a socket's path on Linux (unix(7): 108 with the zero at the end)."""

PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from others that had or will have its number by its start: clock ticks since the system's."""

    pid: int
    start: int

    @property
    def socket_name(self) -> str:
        return f"tessera-{self.pid}-{self.start}.sock"

    @property
    def alive(self) -> bool:
        """Whether it still runs. One that has ended, and whose parent has not asked yet, does not."""
        return process(self.pid) == self


def process(pid: int) -> Process | None:
    """The process that has this number now, None where none has, or where it is a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in brackets, which may itself have blanks and brackets.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def owner(pid: int) -> int:
    """The user a process runs as. Raises FileNotFoundError where it is gone."""
    try:
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    except ProcessLookupError as error:  # it went while the file was open
        raise FileNotFoundError(f"no process {pid}") from error
    # Not the folder's owner, which is root where the process lets nobody look into its memory (prctl(2)).
    return int(re.findall(r"^Uid:\s+\d+\s+(\d+)", text, re.MULTILINE)[0])


def folders() -> Iterator[Path]:
    """Where sockets may lie, the best first: the user's runtime folder, the cache folder, the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        yield Path(runtime) / "tessera"
    # Homes are shared between hosts, process numbers are not.
    yield settings.current().attach_dir / host_name()
    yield Path(tempfile.gettempdir()) / f"tessera-{os.geteuid()}"


def folder_for(name: str) -> Path:
    """The first of the `folders` that is, or can be made, the user's alone, and in which a socket of that name can be
    bound. Raises OSError where there is none.
    """
    refused = []
    for folder in folders():
        if len(os.fsencode(folder / name)) > _LONGEST:
            refused.append(f"{folder}: the socket's path would be longer than {_LONGEST} bytes")
            continue
        try:
            make_private(folder)
        except OSError as error:
            refused.append(f"{folder}: {error.strerror or error}")
            continue
        return folder
    raise OSError("; ".join(refused))


def make_private(folder: Path) -> None:
    """Makes a folder that is the user's alone. Raises OSError where it cannot be made, or is a link or somebody
    else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is no folder of this user's")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)


def clean(folder: Path) -> None:
    """Removes sockets of processes that are gone: killed ones leave theirs behind."""
    for path in folder.glob("*.sock"):
        match = _NAME.fullmatch(path.name)
        if match is None or Process(int(match[1]), int(match[2])).alive or _answers(path):
            continue
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _answers(path: Path) -> bool:
    """Whether somebody listens: in another container, where process numbers are others."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # not known: left alone
    return True


def sockets(wanted: Process) -> list[Path]:
    """The sockets on which a process may listen, wherever they are, as it may have other folders than this one: those
    that it is known to hold before others of its name, which anybody can take; all belong to the user as whom it runs.
    """
    try:
        user = owner(wanted.pid)
    except FileNotFoundError:
        return []
    found: dict[Path, None] = {}
    for path in _named(wanted):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == user:
                found[path] = None
    return list(found)


def _named(wanted: Process) -> list[Path]:
    """Paths under which the process may listen, by their names, what it holds first."""
    held: list[Path] = []
    others = [folder / wanted.socket_name for folder in folders()]
    with contextlib.suppress(OSError):
        mine = _held(wanted.pid)
        text = (PROC / str(wanted.pid) / "net" / "unix").read_text(errors="surrogateescape")
        for line in text.splitlines():
            fields = line.split(maxsplit=7)
            path = Path(fields[-1])
            if path.name == wanted.socket_name and path.is_absolute():
                (held if fields[6] in mine else others).append(path)
    return held + others


def _held(pid: int) -> set[str]:
    """The numbers of the sockets that a process has open; none where it lets nobody look."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(descriptor.path)))
    return found
