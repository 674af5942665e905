"""Compiling candidates for CPUs in processes beside this one: several at a time, and what breaks a compiler breaks no
program.

Threads would not do: lowering is Python, and LLVM, as llvmlite has it, holds a lock of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

from tessera.backend.contract import KernelObject
from tessera.compiler.process.worker import COMPILED, pack_job
from tessera.errors import CacheFormatError, CompileError
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Spec
from tessera.system.priority import current_niceness
from tessera.target import Target
from tessera.tuning.measure.forkserver_client import Channel, ForkServer, WorkerDiedError, WorkerTimeoutError

MODULE = "tessera.compiler.process.worker"
LIMIT_S = 60.0
"""Seconds after which a compilation is given up; large kernels take a tenth of a second."""
_START_S = 60.0
"""Added for the first kernels: the server imports torch, on a machine that may be busy."""


class CompileJob(NamedTuple):
    """What a kernel's code is made from."""

    spec: Spec
    schedule: Schedule
    target: Target


class CompilePool:
    """A process for each processor that this one may use, started at the first use and ended by `close` or with the
    program. `module` is what they run, at a `niceness` of Unix. Raises E_TUNE_FAILED where none can be started.
    """

    def __init__(
        self, workers: int | None = None, limit_s: float = LIMIT_S, module: str = MODULE, niceness: int = 0
    ) -> None:
        self.workers = workers or _processors()
        self._niceness = niceness
        self._limit_s = limit_s
        self._module = module
        self._server: ForkServer | None = None
        self._finalizer: weakref.finalize[[], CompilePool] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the processes, without waiting for them."""
        if self._server is None or not self._server.alive:
            self.close()
            self._server = ForkServer(self._module, self.workers, self._niceness)
            self._finalizer = weakref.finalize(self, self._server.close)
            self._warm = False

    def objects(self, jobs: Sequence[CompileJob]) -> list[KernelObject | CompileError]:
        """Each job's kernel, or why it has none: a compiler that crashes or hangs is the problem of that job only."""
        if not jobs:
            return []
        with self._lock:
            return self._objects(jobs)

    def abort(self) -> None:
        """Ends what the processes are doing, which then has failed, from another thread."""
        server = self._server
        if server is not None:
            server.abort()

    def close(self) -> None:
        """Ends the processes; the next use starts others."""
        if self._finalizer is not None:
            self._finalizer()
        self._server = self._finalizer = None

    def _objects(self, jobs: Sequence[CompileJob]) -> list[KernelObject | CompileError]:
        self.start()
        server = self._server
        assert server is not None
        limit_s = self._limit_s if self._warm else self._limit_s + _START_S
        results: list[KernelObject | CompileError] = [CompileError("not compiled")] * len(jobs)
        numbers = iter(range(len(jobs)))

        def work(channel: Channel) -> None:
            for number in numbers:  # the next one that nobody has taken: `next` of an iterator is atomic
                if not server.alive:
                    return
                results[number] = _compiled(channel, jobs[number], limit_s)

        first, *others = server.channels[: len(jobs)]
        # Without a thread more where one process does it all: a program that ends meanwhile would refuse one.
        with ThreadPoolExecutor(len(others)) if others else nullcontext() as threads:
            try:
                waiting = [threads.submit(work, channel) for channel in others] if threads is not None else []
                work(first)
                for done in waiting:
                    done.result()
            except BaseException:  # Ctrl-C, for one
                server.kill()  # and the threads need wait no more
                raise
        self._warm = True
        return results


def compile_pool() -> CompilePool:
    """The pool of this process; while a running program is tuned, one of low priority and a single process."""
    return _pool(current_niceness())


@cache
def _pool(niceness: int) -> CompilePool:
    return CompilePool(workers=1 if niceness else None, niceness=niceness)


def _compiled(channel: Channel, job: CompileJob, limit_s: float) -> KernelObject | CompileError:
    try:
        reply = channel.ask(pack_job(*job), limit_s)
    except WorkerTimeoutError:
        return CompileError(f"the compiler did not end within {limit_s:g} s")
    except WorkerDiedError as death:
        return CompileError(f"the compiler crashed: {death}")
    if reply[:1] != COMPILED:
        return CompileError(reply[1:].decode(errors="replace"))
    try:
        return KernelObject.from_bytes(reply[1:])
    except CacheFormatError as error:
        return CompileError(f"the compiler answered nonsense: {error.message}")


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Linux has it
        return os.cpu_count() or 1
