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

from tessera.errors import TesseraError
from tessera.tuning.clock import CacheFlush, ContentionMeter, time_batch
from tessera.tuning.execution import Bench, Candidate
from tessera.tuning.protocol import Done, Load, Loaded, Prepare, Reply, Request, Sample, TakeSample, pack, read_request

_ORPHAN_POLL_S = 1.0
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


class Worker:
    """Answers requests one after the other; holds one workload and its loaded candidates."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._candidates: dict[int, Candidate] = {}
        self._flush: CacheFlush | None = None
        self._seconds: dict[int, float] = {}
        self._meter = ContentionMeter()

    def answer(self, request: Request) -> Reply:
        """The reply to a request."""
        if isinstance(request, Prepare):
            self._forget()
            self._bench = Bench(request.workload)
            self._flush = CacheFlush() if request.workload.cache == "cold" else None
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
        except TesseraError as error:
            return Loaded("compile_error", str(error))
        except MemoryError as error:
            return Loaded("out_of_memory", str(error))
        except RuntimeError as error:  # torch has no class of its own for a failed allocation on a CPU
            if not any(text in str(error) for text in _OUT_OF_MEMORY):
                raise
            return Loaded("out_of_memory", str(error))
        if problem is not None:
            return Loaded("wrong", problem)
        self._candidates[request.candidate] = candidate
        return Loaded("ok")

    def _sample(self, request: TakeSample) -> Sample:
        run = self._candidates[request.candidate].run
        estimate_s = self._seconds.get(request.candidate)
        sample = time_batch(run, request.seconds, self._meter, self._flush, estimate_s)
        self._seconds[request.candidate] = sample.seconds
        return sample


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
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
