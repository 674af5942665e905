"""The launcher: starts the ranks of a job on this host, hands on what they print, and ends them together.

It hosts the job's store, so that no rank takes it along, holds a pidfd of each rank, and tells all how one has ended.
When one fails, the others have a while to end by themselves; then they are ended. The exit code is that of the rank
which failed first.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import IO, Any, Final, Protocol

from tessera.sharding.job.faults import ended_by
from tessera.sharding.job.mail import Mailbox
from tessera.sharding.job.ranks import JobLaunch, Lines, RankProcess, environment, shares

_GRACE_S: Final = 5.0
_KILL_S: Final = 2.0
_LOOK_S: Final = 0.5
_STORE_S: Final = 300.0
_CHUNK: Final = 1 << 16
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Running(Protocol):
    """A rank's process, as its launcher needs it: `ending` is a pidfd, `streams` its output and its errors."""

    rank: int
    pid: int
    ending: int
    streams: tuple[IO[bytes], IO[bytes]]
    code: int | None

    def reap(self) -> int:
        """The exit code of a process that has ended."""

    def signal(self, number: int) -> None:
        """Sends a signal to the rank and to all it has started."""


def launch(wanted: JobLaunch) -> int:
    """Runs a job, and again after failures as often as is wanted. Gives the exit code: 0, or that of the rank that
    failed first, 128 and the signal where one killed it.
    """
    launcher = _Launcher(wanted)
    for attempt in range(wanted.restarts + 1):
        code = launcher.run(attempt)
        if code == 0 or launcher.stopped is not None:
            break
        if attempt < wanted.restarts:
            told = f"starting all {wanted.ranks} ranks again, restart {attempt + 1} of {wanted.restarts}"
            print(f"tessera run: {told}", file=sys.stderr, flush=True)
    return code if launcher.stopped is None else 128 + launcher.stopped


class _Launcher:
    def __init__(self, wanted: JobLaunch) -> None:
        self._wanted = wanted
        self._mailbox = Mailbox()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port = self._listening.getsockname()[1]
        self._store: object = None
        self.stopped: int | None = None

    def run(self, attempt: int) -> int:
        """Runs all ranks once."""
        cores = sorted(os.sched_getaffinity(0))
        own = shares(cores, self._wanted.ranks)
        pinned = self._wanted.pin and len(cores) >= self._wanted.ranks
        ranks = []
        for rank in range(self._wanted.ranks):
            variables = environment(
                self._wanted, rank, len(own[rank]), self._port, attempt, self._mailbox.name, dict(os.environ)
            )
            ranks.append(RankProcess(rank, self._wanted.command, variables, own[rank] if pinned else cores))
        run = WatchedRun(ranks, self._mailbox, (sys.stdout.buffer, sys.stderr.buffer))
        before = {number: signal.signal(number, lambda number, _: run.stop(number)) for number in _SIGNALS}
        try:
            self._host_store()
            code = run.watch()
            self.stopped = run.stopped
            return code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for each in ranks:
                if each.code is None:
                    each.signal(signal.SIGKILL)

    def _host_store(self) -> None:
        """The store that ranks meet in. torch is imported here, while the ranks import it too."""
        if self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            self._store = TCPStore(
                "127.0.0.1",
                self._port,
                is_master=True,
                timeout=timedelta(seconds=_STORE_S),
                wait_for_workers=False,
                master_listen_fd=self._listening.detach(),
            )


class WatchedRun:
    """The ranks of one start."""

    def __init__(self, ranks: Sequence[Running], mailbox: Mailbox, outputs: tuple[IO[bytes], IO[bytes]]) -> None:
        self._ranks, self._mailbox = ranks, mailbox
        self._says = outputs[1]
        self.stopped: int | None = None
        """The signal by which the launcher was told to end."""
        self._started = time.monotonic()
        self._mailboxes: dict[int, str] = {}
        self._raised: tuple[int, str] | None = None
        self._failed: Running | None = None
        self._deadline: float | None = None
        self._poll = select.poll()
        self._poll.register(mailbox.fileno(), select.POLLIN)
        self._endings = {rank.ending: rank for rank in ranks}
        self._outputs: dict[int, tuple[Any, Lines]] = {}
        self._errors: dict[int, Lines] = {}
        for rank in ranks:
            prefix = f"[{rank.rank}] " if len(ranks) > 1 else ""
            for stream, to in zip(rank.streams, outputs, strict=True):
                lines = Lines(prefix, to)
                self._outputs[stream.fileno()] = (stream, lines)
                self._errors[rank.rank] = lines
        for descriptor in (*self._endings, *self._outputs):
            self._poll.register(descriptor, select.POLLIN)

    def stop(self, number: int) -> None:
        """Ends all ranks because the launcher was told so."""
        self.stopped = self.stopped or number
        for rank in self._endings.values():
            rank.signal(number)
        self._deadline = self._deadline or time.monotonic() + _GRACE_S

    def watch(self) -> int:
        """Goes on until all ranks have ended; gives the exit code."""
        while self._endings:
            for descriptor, _ in self._poll.poll(1000 * _LOOK_S):
                if descriptor in self._outputs:
                    self._print(descriptor)
                elif descriptor in self._endings:
                    self._end(descriptor)
                else:
                    self._read()
            self._press()
        for descriptor in list(self._outputs):
            self._print_rest(descriptor)
        # What ranks have said before they ended may lie behind other letters, and is not the next start's to read.
        while select.select([self._mailbox], [], [], 0)[0]:
            self._read()
        return self._judge()

    def _print(self, descriptor: int) -> None:
        stream, lines = self._outputs[descriptor]
        data = os.read(descriptor, _CHUNK)
        lines.write(data)
        if not data:
            self._poll.unregister(descriptor)
            stream.close()
            del self._outputs[descriptor]

    def _print_rest(self, descriptor: int) -> None:
        """What is in a pipe still. What a rank has started may hold it open for ever."""
        os.set_blocking(descriptor, False)
        while descriptor in self._outputs:
            try:
                self._print(descriptor)
            except BlockingIOError:
                self._outputs.pop(descriptor)[0].close()

    def _read(self) -> None:
        letter = self._mailbox.receive()
        if letter is None or not isinstance(letter.content.get("rank"), int):
            return
        rank, kind = letter.content["rank"], letter.content.get("kind")
        if kind == "hello":
            self._mailboxes[rank] = str(letter.content.get("mailbox"))
            for other in self._ranks:
                if other.code is not None:
                    self._tell_of(other, [rank])
        elif kind == "raised" and self._raised is None and letter.content.get("code") != "E_RANK_LOST":
            self._raised = rank, str(letter.content.get("told"))

    def _end(self, descriptor: int) -> None:
        rank = self._endings.pop(descriptor)
        self._poll.unregister(descriptor)
        code = rank.reap()
        self._tell_of(rank, list(self._mailboxes))
        if code and self._failed is None:
            self._failed = rank
            self._deadline = self._deadline or time.monotonic() + _GRACE_S

    def _tell_of(self, ended: Running, ranks: list[int]) -> None:
        for rank in ranks:
            if rank != ended.rank and self._ranks[rank].code is None:
                self._mailbox.send(self._mailboxes[rank], {"kind": "lost", "rank": ended.rank, "code": ended.code})

    def _press(self) -> None:
        """Ends those that have not ended by themselves in time."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        overdue = time.monotonic() > self._deadline + _KILL_S
        for rank in self._endings.values():
            rank.signal(signal.SIGKILL if overdue else signal.SIGTERM)

    def _judge(self) -> int:
        """Says which rank failed first, and ends what failed ranks have left running."""
        failed = self._failed
        if failed is None:
            return 0
        if self._raised is not None and self._ranks[self._raised[0]].code:
            failed = self._ranks[self._raised[0]]
        for rank in self._ranks:
            rank.signal(signal.SIGKILL)
        assert failed.code is not None, "a rank that failed has ended"
        others = [str(rank.rank) for rank in self._ranks if rank is not failed and rank.code]
        after = f"; then ranks {', '.join(others)} ended" if others else ""
        said = self._raised[1] if self._raised is not None else self._errors[failed.rank].last
        said = f": {said}" if failed.code > 0 and said else ""
        seconds = time.monotonic() - self._started
        told = f"rank {failed.rank} (pid {failed.pid}) {ended_by(failed.code)} within {seconds:.1f} s{said}{after}"
        self._says.write(f"tessera run: {told}\n".encode())
        self._says.flush()
        return failed.code if failed.code > 0 else 128 - failed.code
