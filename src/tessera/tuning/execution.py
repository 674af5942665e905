"""Running a candidate inside the worker: load its kernels, lay out the address table, call the native driver.

The driver is the one that bound plans use, so a candidate is timed exactly as it will run.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tessera.backend.contract import KernelObject, LoadedKernel
from tessera.backend.llvm import LLVMBackend
from tessera.runtime.native import FRAME_WORDS, STEP_WORDS, driver
from tessera.tuning.workload import Launch, OperandSpec, Workload, materialize

_LINE = 64


@dataclass(frozen=True)
class Candidate:
    """A loaded candidate: the frame to run, and all that must stay alive as long as it may run."""

    frame: int
    alive: tuple[Any, ...]

    def run(self) -> None:
        """One execution of all its kernels."""
        driver().run(self.frame)


class Bench:
    """The operands of one workload in memory, on which candidates are loaded, checked and run."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        results = {check.operand for check in workload.checks}
        self._operands = [materialize(spec, number in results) for number, spec in enumerate(workload.operands)]
        self._outputs = [self._operands[check.operand] for check in workload.checks]
        self._results = [operand.tensor for operand in self._outputs]

    def load(self, launches: Sequence[Launch], temporaries: Sequence[OperandSpec]) -> Candidate:
        """A candidate that is ready to run."""
        scratch = [materialize(spec, ours=True) for spec in temporaries]
        addresses = [operand.tensor.data_ptr() for operand in self._operands]
        addresses += list(self.workload.scalars)
        addresses += [operand.tensor.data_ptr() for operand in scratch]
        table = _words(addresses)
        backend = LLVMBackend()
        alive: list[Any] = [table, scratch]
        steps: list[int] = []
        for number, launch in enumerate(launches):
            kernel_object = KernelObject.from_bytes(launch.kernel)
            kernel: LoadedKernel = backend.load(kernel_object)
            descriptors = _words(launch.descriptors)
            pitch = math.ceil(kernel_object.workspace_bytes / _LINE) * _LINE
            workspace = torch.empty(pitch * launch.workers + _LINE, dtype=torch.uint8)
            base = math.ceil(workspace.data_ptr() / _LINE) * _LINE
            step = [kernel.address, ctypes.addressof(descriptors), launch.workers, base, pitch, number]
            steps += step + [0] * (STEP_WORDS - len(step))
            alive += [kernel, descriptors, workspace]
        step_words = _words(steps)
        header = [ctypes.addressof(table), len(launches), ctypes.addressof(step_words), 0, 0]
        assert len(header) == FRAME_WORDS
        frame = _words(header)
        return Candidate(ctypes.addressof(frame), (*alive, step_words, frame))

    def check(self, candidate: Candidate) -> str | None:
        """Runs the candidate on poisoned outputs; None if all outputs are right and nothing else was written."""
        for output in self._outputs:
            output.poison()
        candidate.run()
        problem = self._problem()
        if problem is not None:
            self._restore()
        return problem

    def _problem(self) -> str | None:
        for number, operand in enumerate(self._operands):
            if not operand.intact():
                return f"memory next to operand {number} was overwritten"
        for check, result in zip(self.workload.checks, self._results, strict=True):
            error = check.error(result)
            if error is not None:
                return f"output {check.operand}: {error}"
        return None

    def _restore(self) -> None:
        """Makes the operands' memory anew in place: a wrong candidate may have written anywhere."""
        for spec, operand in zip(self.workload.operands, self._operands, strict=True):
            operand.storage.copy_(materialize(spec).storage)


def _words(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    signed = [value - (1 << 64) if value >= 1 << 63 else value for value in values]
    return (ctypes.c_int64 * max(len(signed), 1))(*signed)
