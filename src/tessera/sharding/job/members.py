"""Members: where each rank of a job runs, as the ranks tell each other when they join."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from tessera import settings


@dataclass(frozen=True)
class Member:
    """A rank's process. Those with the same `host` see each other's processes, sockets and memory."""

    rank: int
    pid: int
    started: int
    """When the process started, in the kernel's ticks: a number that is given again has another one."""
    host: str
    hostname: str
    mailbox: str
    cores: tuple[int, ...]

    @property
    def text(self) -> str:
        """The member as JSON."""
        return json.dumps(asdict(self))


def read(text: str) -> Member:
    """The member of a text."""
    fields = json.loads(text)
    return Member(**{**fields, "cores": tuple(fields["cores"])})


def myself(rank: int, mailbox: str) -> Member:
    """This process as a member."""
    pid = os.getpid()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Member(rank, pid, started(pid) or 0, _host(), socket.gethostname(), mailbox, cores)


def started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since its start; None where there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in "Tt"


def _host() -> str:
    """Equal for processes that can see each other: one kernel, and its namespaces of processes and networks; where
    parts of a host have names, as one that stands for several, also one name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net")]
    return " ".join([boot, *spaces, settings.current().host]).rstrip()
