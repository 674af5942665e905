"""The process that runs candidates: `python -m tessera.tuning.measure.worker`, asked by the tuner over pipes.

It is a process of its own because a candidate may crash, hang or write where it should not. The program itself cannot
be forked for that (OpenMP's threads do not survive it), and multiprocessing's spawn imports the user's script again: so
a server that never computes is started once, and forked (`forkserver.py`).
"""

from __future__ import annotations

import os

from tessera.backend.registry import cpu_backend
from tessera.errors import DeviceFaultError, TesseraError
from tessera.lazy.devices import CPU
from tessera.runtime.devices.device import driver_of
from tessera.tuning.measure import forkserver
from tessera.tuning.measure.device_execution import DeviceBench
from tessera.tuning.measure.execution import Bench, Candidate, CpuBench
from tessera.tuning.measure.forkserver import Connection
from tessera.tuning.measure.protocol import (
    CandidateCheck,
    Done,
    Load,
    Prepare,
    Reply,
    Request,
    Sample,
    TakeSample,
    Verify,
    pack_reply,
    read_request,
)
from tessera.tuning.measure.workload import Workload, is_out_of_memory

FAULT_STATUS = 3
"""Exit status of a worker whose device a candidate took down."""


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
        if isinstance(request, Verify):
            return self._verify(request)
        self._forget()
        return Done()

    def _forget(self) -> None:
        self._candidates.clear()
        self._seconds.clear()

    def _load(self, request: Load) -> CandidateCheck:
        assert self._bench is not None
        self._seconds.pop(request.candidate, None)
        try:
            candidate = self._bench.load(request.launches, request.temporaries)
            problem = self._bench.check(candidate)
        except DeviceFaultError:
            raise
        except MemoryError as error:
            return CandidateCheck("out_of_memory", str(error))
        except TesseraError as error:
            return CandidateCheck("compile_error", str(error))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return CandidateCheck("out_of_memory", str(error))
        if problem is not None:
            return CandidateCheck("wrong", problem)
        self._candidates[request.candidate] = candidate
        return CandidateCheck("ok")

    def _verify(self, request: Verify) -> CandidateCheck:
        assert self._bench is not None
        problem = self._bench.check(self._candidates[request.candidate])
        return CandidateCheck("ok") if problem is None else CandidateCheck("wrong", f"{problem}, after it was timed")

    def _sample(self, request: TakeSample) -> Sample | CandidateCheck:
        assert self._bench is not None
        candidate = self._candidates[request.candidate]
        sample = self._bench.sample(candidate, request.seconds, self._seconds.get(request.candidate))
        if isinstance(sample, str):
            return CandidateCheck("wrong", sample)
        self._seconds[request.candidate] = sample.seconds
        return sample


def _bench(workload: Workload) -> Bench:
    if workload.device == CPU:
        return CpuBench(workload)
    return DeviceBench(workload, driver_of(workload.device))


def serve(connection: Connection) -> None:
    """Answers requests until there are no more."""
    worker = Worker()
    while (request := connection.receive()) is not None:
        try:
            reply = worker.answer(read_request(request))
        except DeviceFaultError as fault:
            # At once: after a fault, what libraries do at the end of a process can hang or abort.
            os.write(2, f"{fault.code}: {fault.message}".encode())
            os._exit(FAULT_STATUS)
        connection.send(pack_reply(reply))


def main() -> None:
    """Serves the tuner that started this process."""
    cpu_backend().preload(compiles=False)  # once in the server, so that every process has it
    forkserver.run(serve)


if __name__ == "__main__":
    main()
