"""The process that runs candidates: `python -m tessera.tuning.worker`, driven over its standard input and output.

It is a process of its own because a candidate may crash, hang or write where it should not, and neither a fork
(OpenMP's threads do not survive it) nor multiprocessing's spawn (which imports the user's script again) is safe to
start from a program that uses torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import BinaryIO

from tessera.errors import DeviceFaultError, TesseraError
from tessera.lazy.devices import CPU
from tessera.runtime.device import driver_of
from tessera.tuning.device_execution import DeviceBench
from tessera.tuning.execution import Bench, Candidate, CpuBench
from tessera.tuning.protocol import Done, Load, Loaded, Prepare, Reply, Request, Sample, TakeSample, pack, read_request
from tessera.tuning.workload import Workload

FAULT_STATUS = 3
"""Exit status of a worker whose device a candidate took down."""

_ORPHAN_POLL_S = 1.0
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


class Worker:
    """Answers requests one after the other; holds one workload and its loaded candidates."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._candidates: dict[int, Candidate] = {}
        self._seconds: dict[int, float] = {}

    def answer(self, request: Request) -> Reply:
        """The reply to a request. Raises DeviceFaultError where a candidate took its device down."""
        if isinstance(request, Prepare):
            self._forget()
            self._bench = None  # its memory comes free before the next one takes some
            self._bench = _bench(request.workload)
            return Done()
        if isinstance(request, Load):
            return self._load(request)
        if isinstance(request, TakeSample):
            return self._sample(request)
        self._forget()
        return Done()

    def _forget(self) -> None:
        self._candidates.clear()
        self._seconds.clear()

    def _load(self, request: Load) -> Loaded:
        assert self._bench is not None
        self._seconds.pop(request.candidate, None)
        try:
            candidate = self._bench.load(request.launches, request.temporaries)
            problem = self._bench.check(candidate)
        except DeviceFaultError:
            raise
        except MemoryError as error:
            return Loaded("out_of_memory", str(error))
        except TesseraError as error:
            return Loaded("compile_error", str(error))
        except RuntimeError as error:  # torch has no class of its own for a failed allocation on a CPU
            if not any(text in str(error) for text in _OUT_OF_MEMORY):
                raise
            return Loaded("out_of_memory", str(error))
        if problem is not None:
            return Loaded("wrong", problem)
        self._candidates[request.candidate] = candidate
        return Loaded("ok")

    def _sample(self, request: TakeSample) -> Sample:
        assert self._bench is not None
        candidate = self._candidates[request.candidate]
        sample = self._bench.sample(candidate, request.seconds, self._seconds.get(request.candidate))
        self._seconds[request.candidate] = sample.seconds
        return sample


def _bench(workload: Workload) -> Bench:
    if workload.device == CPU:
        return CpuBench(workload)
    return DeviceBench(workload, driver_of(workload.device))


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers requests until their stream ends."""
    worker = Worker()
    while (request := read_request(requests)) is not None:
        replies.write(pack(worker.answer(request)))
        replies.flush()


def _leave_with_parent(parent: int) -> None:
    # A candidate that hangs keeps the main thread from seeing the end of its input; kernels run without the GIL.
    while os.getppid() == parent:
        time.sleep(_ORPHAN_POLL_S)
    os._exit(1)


def main() -> None:
    """Serves standard input. What a library prints goes to standard error, so that it cannot damage the replies."""
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, replies)
    except DeviceFaultError as fault:
        # At once: after a fault, what libraries do at the end of a process can hang or abort.
        os.write(2, f"{fault.code}: {fault.message}".encode())
        os._exit(FAULT_STATUS)


if __name__ == "__main__":
    main()
