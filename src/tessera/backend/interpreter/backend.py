"""Kernels for Triton's interpreter, as the contract has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backend.contract import GpuKernelObject
from tessera.backend.triton import TritonBackend
from tessera.errors import CompileError
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class InterpreterBackend(TritonBackend):
    """What Triton's backend makes, but for machine code: there is none, the printed source is what runs."""

    device = "interpreter"

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        """Each kernel as an object without machine code. Raises UnsupportedTargetError without Triton."""
        from tessera.backend.interpreter.interpreted import interpreted_objects

        return interpreted_objects(modules, target)

    def tick_ns(self, target: Target) -> float:
        """One: the interpreter reads the clock of the CPU."""
        return 1.0
