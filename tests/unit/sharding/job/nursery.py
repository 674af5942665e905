"""A process that has imported what ranks need, and forks them: a rank then costs milliseconds instead of seconds.

Reads jobs from its standard input, a line of JSON each, and answers each with a line. The ranks of a job run a function
of `tests.unit.sharding.job.work` or `profiled`; `tessera.sharding.job.launcher` watches them as those of `tessera run`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import IO, Any, NoReturn, cast

import torch

from tessera import settings
from tessera.compiler import entry
from tessera.sharding.job import mail
from tessera.sharding.job.launcher import WatchedRun
from tessera.sharding.transport.native import native
from tests.unit.sharding.job import profiled, work

SECONDS = 120
CLONE_NEWPID = 0x20000000
PR_SET_PDEATHSIG = 1


class ForkedRank:
    """A rank that is a fork of this process; see `launcher.Running`."""

    def __init__(self, rank: int, *, apart: bool = False) -> None:
        self.rank = rank
        pipes = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        self.is_here = self.pid == 0
        if self.is_here and apart:
            go_apart()
        for number, (read, write) in enumerate(pipes, start=1):
            if self.is_here:
                os.dup2(write, number)
                os.close(read)
            os.close(write)
        self.code: int | None = None
        if self.is_here:
            return
        self.ending = os.pidfd_open(self.pid)
        self.streams: tuple[IO[bytes], IO[bytes]] = (os.fdopen(pipes[0][0], "rb"), os.fdopen(pipes[1][0], "rb"))

    def reap(self) -> int:
        """The exit code."""
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.ending)
        return self.code

    def signal(self, number: int) -> None:
        """Sends a signal to the rank."""
        if self.code is None:
            os.kill(self.pid, number)


def go_apart() -> None:
    """From here on this process is in a namespace of processes of its own: to the other ranks it is on another host.

    It is the grandchild of what it was: the first process of a namespace is not killed by those in it. The others wait
    for it, and end as it does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "a namespace of processes is not given")
    for generation in range(2):
        child = os.fork()
        if child:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            code = 128 - code if code < 0 else code
            if generation == 0 and code > 128:
                os.kill(os.getpid(), code - 128)
            os._exit(code)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def may_go_apart() -> bool:
    """Whether this user may have namespaces of processes."""
    child = os.fork()
    if child == 0:
        os._exit(int(ctypes.CDLL(None).unshare(CLONE_NEWPID) != 0))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def function(name: str) -> Callable[..., object]:
    """What the ranks of a job run, by its name."""
    found: Callable[..., object] = getattr(work, name, None) or getattr(profiled, name)
    return found


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def live(program: Callable[[], object]) -> NoReturn:
    """Runs a rank's program and ends the process as the interpreter would, but for freeing everything, which takes a
    fork seconds.
    """
    code = 0
    try:
        program()
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*cast("tuple[type[BaseException], BaseException, TracebackType]", sys.exc_info()))
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serves jobs."""
    torch.set_num_threads(1)
    native()
    entry.load()
    gc.collect()
    gc.freeze()  # ranks share what is there by now, and their collectors of cycles pass over it
    for line in sys.stdin:
        job = json.loads(line)
        launcher, port = mail.Mailbox(), free_port()
        ranks = []
        for rank in range(job["ranks"]):
            ranks.append(ForkedRank(rank, apart=rank in job["apart"]))
            if ranks[-1].is_here:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(job["ranks"]), "MASTER_ADDR": "127.0.0.1"}
                os.environ |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
                changes: dict[str, Any] = {"launcher": launcher.name, **job["settings"]}
                os.close(0)
                launcher.close()
                if job["hosts"]:
                    changes["host"] = job["hosts"][rank]
                with settings.override(**changes):
                    live(partial(function(job["function"]), **job["arguments"]))
        out, err = io.BytesIO(), io.BytesIO()
        run = WatchedRun(ranks, launcher, (out, err))
        signal.signal(signal.SIGALRM, lambda *_, run=run: run.stop(signal.SIGKILL))
        signal.alarm(SECONDS)
        code = run.watch()
        signal.alarm(0)
        launcher.close()
        answer = {"code": code, "codes": [rank.code for rank in ranks], "out": out.getvalue().decode()}
        print(json.dumps(answer | {"err": err.getvalue().decode()}), flush=True)


class Nursery:
    """The process, as tests use it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.unit.sharding.job.nursery"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(
        self,
        ranks: int,
        function: str,
        changes: dict[str, Any] | None = None,
        apart: Sequence[int] = (),
        hosts: Sequence[str] = (),
        **arguments: Any,
    ) -> Outcome:
        """Runs a function of `work` in so many ranks, of which those `apart` are each on a host of their own; `hosts`
        are by rank the names of hosts that they count as being on.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"ranks": ranks, "function": function, "settings": changes or {}, "arguments": arguments}
        job |= {"apart": list(apart), "hosts": list(hosts)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


class Outcome:
    """How a job ended: the launcher's exit code, those of the ranks, and what was printed."""

    def __init__(self, code: int, codes: list[int], out: str, err: str) -> None:
        self.code, self.codes, self.out, self.err = code, codes, out, err

    def said(self, rank: int) -> list[Any]:
        """What a rank told, in order."""
        prefix = f"[{rank}] "
        lines = [line.removeprefix(prefix) for line in self.out.splitlines() if line.startswith(prefix)]
        return [json.loads(line) for line in lines]


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    """A nursery for a while."""
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    main()
