"""The processes of a job's ranks, as their launcher starts and ends them, and what they print."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True)
class JobLaunch:
    """What is run: a command in `ranks` processes, each with `threads` threads (None: its share of the cores), pinned
    to its share of the cores where that is at least one, started again up to `restarts` times after a failure.
    """

    command: tuple[str, ...]
    ranks: int
    threads: int | None = None
    restarts: int = 0
    pin: bool = True


def shares(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """The cores of each rank, neighbours together: as even as can be; all of them where there are fewer than ranks."""
    if len(cores) < ranks:
        return [list(cores)] * ranks
    borders = [len(cores) * rank // ranks for rank in range(ranks + 1)]
    return [list(cores[borders[rank] : borders[rank + 1]]) for rank in range(ranks)]


def environment(
    launch: JobLaunch, rank: int, cores: int, port: int, attempt: int, launcher: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a rank: those that torchrun sets, number of threads, and the launcher's mailbox."""
    made = {
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **inherited,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(launch.ranks),
        "LOCAL_WORLD_SIZE": str(launch.ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": launcher,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.restarts),
        "TESSERA_LAUNCHER": launcher,
    }
    threads = launch.threads or max(1, cores // launch.ranks if cores < launch.ranks else cores)
    for name in ("OMP_NUM_THREADS", "TESSERA_THREADS"):
        if launch.threads is not None or name not in inherited:
            made[name] = str(threads)
    return made


class RankProcess:
    """A rank that runs. It is killed when the launcher ends, and leads a session of its own, so that what it starts can
    be ended with it.
    """

    def __init__(self, rank: int, command: Sequence[str], variables: Mapping[str, str], cores: Sequence[int]) -> None:
        self.rank = rank
        parent = os.getpid()

        def begin() -> None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            [sys.executable, *command],
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=begin,  # noqa: PLW1509 - it calls one function of the kernel's
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.ending = os.pidfd_open(self.pid)
        with contextlib.suppress(OSError):  # it may have ended, and some containers allow no pinning
            os.sched_setaffinity(self.pid, cores)
        assert self._process.stdout is not None, "the output is a pipe"
        assert self._process.stderr is not None, "the output is a pipe"
        self.streams: tuple[IO[bytes], IO[bytes]] = (self._process.stdout, self._process.stderr)
        self.code: int | None = None

    def reap(self) -> int:
        """The exit code of a process that has ended."""
        self.code = self._process.wait()
        os.close(self.ending)
        return self.code

    def signal(self, number: int) -> None:
        """Sends a signal to the rank and to all it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class Lines:
    """Output of a rank, handed on in whole lines that begin with its number."""

    def __init__(self, prefix: str, to: IO[bytes]) -> None:
        self._prefix, self._to = prefix.encode(), to
        self._rest = b""
        self.last = ""
        """The last line that was not empty."""

    def write(self, data: bytes) -> None:
        """More output; none at its end."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop() if data else b""
        if not data and lines == [b""]:
            return
        whole = b"".join(self._prefix + line + b"\n" for line in lines if line or data)
        self.last = next((line.decode(errors="replace") for line in reversed(lines) if line.strip()), self.last)
        with contextlib.suppress(BrokenPipeError):
            self._to.write(whole)
            self._to.flush()
