"""The tuner's end of a fork server: start it, ask with a time limit, kill, see how a process died."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tessera.errors import TuneFailedError
from tessera.tuning.measure.forkserver import DIED, FRAME, LAST, REQUEST

_TAIL = 600
"""Characters of a dead server's last words that are kept."""
_BURIAL_S = 5.0
"""Seconds that a killed process, which a device's driver may hold, has to be gone."""
_CHUNK = 1 << 16


class WorkerDiedError(Exception):
    """The process ended in the middle of a request: `signal_name` is None where it left by itself."""

    def __init__(self, returncode: int, last_words: str) -> None:
        self.signal_name = signal.Signals(-returncode).name if returncode < 0 else None
        how = f"killed by {self.signal_name}" if self.signal_name else f"left with exit status {returncode}"
        super().__init__(f"{how}: {last_words}" if last_words else how)


class WorkerTimeoutError(Exception):
    """The process did not answer in time, and was killed."""


def _lower(pid: int, niceness: int) -> None:
    """Lowers the priority of a process and of its session, among which Linux may share processors out first (sched(7),
    "The autogroup feature"); nothing where it has ended already, or has a lower one as it is.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


class ForkServer:
    """A running `python -m MODULE` with some channels, where MODULE calls `forkserver.run`. Its `niceness`, and that of
    its processes, is that of Unix: 19 takes only what others leave. Raises E_TUNE_FAILED when it cannot be started.
    """

    def __init__(self, module: str, channels: int = 1, niceness: int = 0) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._owner = os.getpid()
        package_root = str(Path(__file__).parents[3])
        path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        control, self._control = os.pipe()
        requests, replies = [os.pipe() for _ in range(channels)], [os.pipe() for _ in range(channels)]
        theirs = [control, *(pipe[0] for pipe in requests), *(pipe[1] for pipe in replies)]
        pairs = [f"{request[0]}:{reply[1]}" for request, reply in zip(requests, replies, strict=True)]
        try:
            # -P: a file of the user's working directory must not stand in for a module of the worker. A session of its
            # own: Ctrl-C is the user's program's to act on.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(control), *pairs],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                # One thread: what another one (numpy starts some) holds would be held in forks for ever.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=theirs,
                start_new_session=True,
            )
        except OSError as error:
            self._words.close()
            for descriptor in (self._control, *(pipe[1] for pipe in requests), *(pipe[0] for pipe in replies)):
                os.close(descriptor)
            raise TuneFailedError(f"cannot start a measuring process with {sys.executable!r}: {error}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.channels = tuple(
            Channel(self, number, request[1], reply[0])
            for number, (request, reply) in enumerate(zip(requests, replies, strict=True))
        )
        if niceness:
            _lower(self._process.pid, niceness)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def interrupt(self, number: int) -> None:
        """Has the process of a channel killed."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, bytes([number]))

    def abort(self) -> None:
        """Ends the server and its processes; for threads other than the one that asks, which is told of their death."""
        if os.getpid() == self._owner and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends the server and its processes at once, whatever they are doing; who waits for an answer is told so."""
        if os.getpid() != self._owner:
            return  # a fork of the program has no say in it
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_BURIAL_S)

    def close(self) -> None:
        """Ends all and gives the descriptors back; nobody may be waiting for an answer any more."""
        if os.getpid() != self._owner or self._words.closed:
            return
        self.kill()
        os.close(self._control)
        for channel in self.channels:
            channel.close()
        self._words.close()

    def death(self) -> WorkerDiedError:
        """How the server itself ended, which it has or is about to."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_BURIAL_S)
        returncode = self._process.poll()
        self.kill()
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), _TAIL, max(size - _TAIL, 0)).decode(errors="replace").strip()
        return WorkerDiedError(-signal.SIGKILL if returncode is None else returncode, words)


class Channel:
    """One process at a time behind a server, asked and answering in turn."""

    def __init__(self, server: ForkServer, number: int, requests: int, replies: int) -> None:
        self._server, self._number = server, number
        self._requests, self._replies = requests, replies
        os.set_blocking(requests, False)
        os.set_blocking(replies, False)

    def ask(self, body: bytes, limit_s: float) -> bytes:
        """The answer to a request. Raises WorkerDiedError or, after `limit_s` seconds, WorkerTimeoutError: another
        process answers the next request then.
        """
        deadline = time.monotonic() + limit_s
        try:
            self._write(REQUEST.pack(len(body)) + body, deadline)
            return self._answer(deadline)
        except WorkerTimeoutError:
            self.renew()
            raise

    def lost(self) -> bool:
        """Whether the process has died since it last answered."""
        deaths = 0
        while self._server.alive and (frame := self._frame(time.monotonic())) is not None:
            deaths += frame[0] == DIED
        return deaths > 0 or not self._server.alive

    def close(self) -> None:
        """Gives the descriptors back."""
        os.close(self._requests)
        os.close(self._replies)

    def renew(self) -> None:
        """Kills the process, so that another one answers the next request; the server, if that does not do."""
        self._server.interrupt(self._number)
        deadline = time.monotonic() + _BURIAL_S
        with contextlib.suppress(WorkerDiedError):  # the server itself is gone
            while (frame := self._frame(deadline)) is not None:
                if frame[0] == DIED:
                    return
        self._server.kill()

    def _answer(self, deadline: float) -> bytes:
        parts = []
        while (frame := self._frame(deadline)) is not None:
            kind, part = frame
            if kind == DIED:
                note = json.loads(part)
                raise WorkerDiedError(note["returncode"], note["words"])
            parts.append(part)
            if kind == LAST:
                return b"".join(parts)
        raise WorkerTimeoutError

    def _frame(self, deadline: float) -> tuple[bytes, bytes] | None:
        """The next part of a reply; None when there is none until `deadline`."""
        header = self._read(FRAME.size, deadline)
        if header is None:
            return None
        kind, length = FRAME.unpack(header)
        body = self._read(length, deadline + 1.0) if length else b""  # parts are written in one piece
        return None if body is None else (kind, body)

    def _read(self, count: int, deadline: float) -> bytes | None:
        data = b""
        while len(data) < count:
            if not _ready(self._replies, selectors.EVENT_READ, deadline):
                return None
            try:
                part = os.read(self._replies, count - len(data))
            except BlockingIOError:
                continue
            if not part:
                raise self._server.death()
            data += part
        return data

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            if not _ready(self._requests, selectors.EVENT_WRITE, deadline):
                raise WorkerTimeoutError
            try:
                view = view[os.write(self._requests, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._server.death() from None


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, event)
        return bool(selector.select(max(deadline - time.monotonic(), 0)))
