"""What the tests of devices share: memory of the interpreter that is full of NaNs before a kernel writes to it."""

from __future__ import annotations

import ctypes

import pytest

from tessera.compiler import pipeline
from tessera.runtime.devices.interpreter_device import HostMemory, InterpreterDriver

POISON = 0xFF
"""A byte that makes NaNs of floats, -1 of integers, and no boolean."""


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and temporaries of the interpreter hold NaNs before they are written."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    allocate = InterpreterDriver.allocate

    def poisoned(self: InterpreterDriver, nbytes: int) -> HostMemory:
        memory = allocate(self, nbytes)
        ctypes.memset(memory.address, POISON, nbytes)
        return memory

    monkeypatch.setattr(InterpreterDriver, "allocate", poisoned)
    pipeline.forget_plans()
