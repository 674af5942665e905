"""The tuner's end of a worker process: start, ask with a time limit, kill, see how it died."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tessera.errors import TuneFailedError
from tessera.tuning.protocol import HEADER, Done, Loaded, Reply, Request, Sample, pack

_TAIL = 600
"""Characters of a dead worker's last words that are kept."""


class WorkerDiedError(Exception):
    """The worker ended in the middle of a request: `signal_name` is None where it left by itself."""

    def __init__(self, returncode: int, last_words: str) -> None:
        self.signal_name = signal.Signals(-returncode).name if returncode < 0 else None
        how = f"killed by {self.signal_name}" if self.signal_name else f"left with exit status {returncode}"
        super().__init__(f"{how}: {last_words}" if last_words else how)


class WorkerTimeoutError(Exception):
    """The worker did not answer in time, and was killed."""


WORKER = "tessera.tuning.worker"


class WorkerProcess:
    """A running `python -m tessera.tuning.worker`, or another module that serves as it does. Raises E_TUNE_FAILED when
    it cannot be started.
    """

    def __init__(self, module: str = WORKER) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        package_root = str(Path(__file__).parents[2])
        path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            # -P: a file of the user's working directory must not stand in for a module of the worker.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                bufsize=0,
            )
        except OSError as error:
            self._words.close()
            raise TuneFailedError(f"cannot start a measuring process with {sys.executable!r}: {error}") from error

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker still runs."""
        return self._process.poll() is None

    def ask(self, request: Request, limit_s: float) -> Reply:
        """Sends a request and waits for its answer; raises WorkerDiedError or, after `limit_s` seconds,
        WorkerTimeoutError.
        """
        assert self._process.stdin is not None
        deadline = time.monotonic() + limit_s
        try:
            view = memoryview(pack(request))
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise self._death() from None
        (length,) = HEADER.unpack(self._read(HEADER.size, deadline))
        reply = pickle.loads(self._read(length, deadline))
        assert isinstance(reply, Done | Loaded | Sample)
        return reply

    def kill(self) -> None:
        """Ends the worker at once, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._words):
            if stream is not None:
                stream.close()

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while count:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.kill()
                    raise WorkerTimeoutError
                part = os.read(descriptor, count)
                if not part:
                    raise self._death()
                parts.append(part)
                count -= len(part)
        return b"".join(parts)

    def _death(self) -> WorkerDiedError:
        returncode = self._process.wait()
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").strip()[-_TAIL:]
        self.kill()
        return WorkerDiedError(returncode, words)
