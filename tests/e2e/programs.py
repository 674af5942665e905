"""Processes that do what a test tells them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tessera.profiling.attach import places
from tests.forked import Process

ANSWER_S = 120.0

PROGRAM = """
import faulthandler, os, sys
faulthandler.enable()
from tessera import op, profile
from tessera.profiling.attach import listener
x = op.tensor((8, 8))
def step():
    with profile.region("step"):
        op.add(x, x).eval()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Program:
    """A process that does what it is told, line by line."""

    def __init__(self, **environment: str) -> None:
        (read, told), (said, write) = os.pipe(), os.pipe()
        files = (read, write, sys.__stderr__ or 2)
        self.process = Process(PROGRAM, ["-c"], files, {**os.environ, "TESSERA_THREADS": "1", **environment}, warm=True)
        os.close(read)
        os.close(write)
        self._told, self._said = os.fdopen(told, "w"), os.fdopen(said)
        self.pid = self.process.pid
        assert self.said() == "ready"

    def said(self) -> str:
        """The next line that it prints. One that prints none in time is ended, and tells where its threads were."""
        late = threading.Timer(ANSWER_S, self.process.send_signal, [signal.SIGABRT])
        late.daemon = True
        late.start()
        line = self._said.readline()
        late.cancel()
        assert line, "the program has ended, or was ended since it printed nothing for too long"
        return line.strip()

    def tell(self, line: str) -> None:
        self._told.write(line + "\n")
        self._told.flush()

    def do(self, line: str) -> str:
        """What the line printed, when it is done."""
        self.tell(line)
        said = []
        while (text := self.said()) != "done":
            said.append(text)
        return "\n".join(said)

    def end(self) -> int:
        """Has it end in order; its exit status."""
        self._told.close()
        return self.process.wait(120)

    def close(self) -> None:
        """Ends it, however it is."""
        self.process.kill()
        self.process.wait()
        self._said.close()
        with suppress(BrokenPipeError):
            self._told.close()

    def socket(self) -> Path | None:
        """Where it listens."""
        found = places.process(self.pid)
        assert found is not None
        return next(iter(places.sockets(found)), None)


class Programs:
    """Starts programs, and ends them when the `with` block ends."""

    def __init__(self) -> None:
        self._started: list[Program] = []

    def start(self, **environment: str) -> Program:
        self._started.append(Program(**environment))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._started:
            each.close()
