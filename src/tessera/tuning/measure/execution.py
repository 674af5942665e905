"""Running candidates inside the worker: `Bench`, and the one of CPUs.

On a CPU a candidate's kernels are loaded, its address table is laid out and the native driver is called that bound
plans use, so a candidate is timed exactly as it will run. `device_execution.py` has the bench of GPUs.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.backend.contract import KernelObject, LoadedKernel
from tessera.backend.registry import cpu_backend
from tessera.errors import CacheFormatError
from tessera.runtime.memory import workspace
from tessera.runtime.plans.native import FRAME_WORDS, STEP_WORDS, driver
from tessera.tuning.measure.clock import CacheFlush, ContentionMeter, time_batch
from tessera.tuning.measure.guarded_memory import GuardedMemory
from tessera.tuning.measure.protocol import Sample
from tessera.tuning.measure.workload import (
    KernelCall,
    Launches,
    OperandSpec,
    PlacedOperand,
    Workload,
    guarded,
    materialize,
)


class Candidate(Protocol):
    """A loaded candidate and its temporaries."""

    @property
    def temporaries(self) -> Sequence[PlacedOperand]: ...

    def run(self) -> None:
        """One execution of all its kernels, finished or, on a GPU, enqueued."""


class Bench(ABC):
    """The operands of one workload in memory, on which candidates are loaded, checked and timed."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        results = self._written = {check.operand for check in workload.checks}
        self.operands = [self.materialize(spec, number in results) for number, spec in enumerate(workload.operands)]
        self._outputs = [self.operands[check.operand] for check in workload.checks]
        self._results = [operand.tensor for operand in self._outputs]
        for number, operand in enumerate(self.operands):
            if number not in results:
                operand.seal()
        # Without pages that can be sealed, a sum tells whether somebody wrote into one.
        self._sums = {
            number: operand.checksum()
            for number, operand in enumerate(self.operands)
            if number not in results and operand.memory is None
        }

    @abstractmethod
    def materialize(self, spec: OperandSpec, ours: bool = False) -> PlacedOperand:
        """An operand where kernels find it; `ours`: as `workload.guarded` has it."""

    @abstractmethod
    def load(self, launches: Launches, temporaries: Sequence[OperandSpec]) -> Candidate:
        """A candidate that is ready to run."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when all that runs is done. Raises what the device reports of it."""

    @abstractmethod
    def time(self, candidate: Candidate, seconds: float, estimate_s: float | None) -> Sample:
        """Times a candidate for about `seconds`; `estimate_s` a call is what is known of it."""

    def check(self, candidate: Candidate) -> str | None:
        """Runs the candidate on poisoned outputs; None if all outputs are right and nothing else was written."""
        for output in self._outputs:
            output.poison()
        candidate.run()
        self.wait()
        problem = self._stray(candidate) or self._changed_input() or self._error()
        if problem is not None:
            self._restore()
        return problem

    def sample(self, candidate: Candidate, seconds: float, estimate_s: float | None) -> Sample | str:
        """Times a candidate as `time` does; what is wrong if it wrote where it must not meanwhile."""
        sample = self.time(candidate, seconds, estimate_s)
        problem = self._stray(candidate)
        if problem is not None:
            self._restore()
            return f"{problem} while it was timed"
        return sample

    def addresses(self, scratch: Sequence[PlacedOperand]) -> list[int]:
        """The address table: operands, scalars, temporaries."""
        operands = [operand.tensor.data_ptr() for operand in self.operands]
        return [*operands, *self.workload.scalars, *(operand.tensor.data_ptr() for operand in scratch)]

    def _stray(self, candidate: Candidate) -> str | None:
        """Whether something was written beside an operand or a temporary."""
        kinds = (("operand", self.operands), ("temporary", candidate.temporaries))
        for kind, operands in kinds:
            for number, operand in enumerate(operands):
                if not operand.intact():
                    return f"memory next to {kind} {number} was overwritten"
        return None

    def _changed_input(self) -> str | None:
        for number, checksum in self._sums.items():
            if self.operands[number].checksum() != checksum:
                return f"operand {number} was overwritten"
        return None

    def _error(self) -> str | None:
        for check, result in zip(self.workload.checks, self._results, strict=True):
            error = check.error(result)
            if error is not None:
                return f"output {check.operand}: {error}"
        return None

    def _restore(self) -> None:
        """Makes the operands' memory anew in place, but for what is sealed."""
        for number, (spec, operand) in enumerate(zip(self.workload.operands, self.operands, strict=True)):
            if operand.memory is None:
                operand.storage.copy_(materialize(spec).storage)
            elif number in self._written:
                operand.fill(spec)


@dataclass(frozen=True)
class CpuCandidate:
    """A candidate on a CPU: the frame to run, and all that must stay alive as long as it may run."""

    frame: int
    alive: tuple[Any, ...]
    temporaries: Sequence[PlacedOperand]

    def run(self) -> None:
        """One execution of all its kernels."""
        driver().run(self.frame)


class CpuBench(Bench):
    """Candidates on this machine's CPU."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._meter = ContentionMeter()
        self._flush = CacheFlush() if workload.cache == "cold" else None

    def materialize(self, spec: OperandSpec, ours: bool = False) -> PlacedOperand:
        """The operand between pages that nobody may touch."""
        return guarded(spec, ours)

    def wait(self) -> None:
        """Nothing: a candidate is done when it returns."""

    def time(self, candidate: Candidate, seconds: float, estimate_s: float | None) -> Sample:
        """Times a candidate on warm or flushed caches, as the workload asks."""
        return time_batch(candidate.run, seconds, self._meter, self._flush, estimate_s)

    def load(self, launches: Launches, temporaries: Sequence[OperandSpec]) -> CpuCandidate:
        """A candidate that is ready to run. Raises CacheFormatError for kernels that are none of a CPU."""
        placed = [guarded(spec, ours=True) for spec in temporaries]
        table = _words(self.addresses(placed))
        backend = cpu_backend()
        alive: list[Any] = [table]
        steps: list[int] = []
        for number, launch in enumerate(launches):
            if not isinstance(launch, KernelCall):
                raise CacheFormatError("a launch on a GPU cannot be measured on a CPU")
            kernel_object = KernelObject.from_bytes(launch.kernel)
            kernel: LoadedKernel = backend.load(kernel_object)
            descriptors = _words(launch.descriptors)
            pitch = workspace.pitch(kernel_object.workspace_bytes)
            nbytes = workspace.total(kernel_object.workspace_bytes, launch.workers)
            scratch = GuardedMemory(nbytes, ours=True)
            step = [kernel.address, ctypes.addressof(descriptors), launch.workers, scratch.address, pitch, number]
            steps += step + [0] * (STEP_WORDS - len(step))
            alive += [kernel, descriptors, scratch]
        step_words = _words(steps)
        header = [ctypes.addressof(table), len(launches), ctypes.addressof(step_words), 0, 0]
        assert len(header) == FRAME_WORDS
        frame = _words(header)
        return CpuCandidate(ctypes.addressof(frame), (*alive, step_words, frame), placed)


def _words(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    signed = [value - (1 << 64) if value >= 1 << 63 else value for value in values]
    return (ctypes.c_int64 * max(len(signed), 1))(*signed)
