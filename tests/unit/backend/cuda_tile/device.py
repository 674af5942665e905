"""A device whose kernels are programs of CUDA Tile IR, interpreted and held against Tile IR's interpreter.

Every launch computes twice: the kernel's Tile IR on copies of what it writes, and the program on the memory itself.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tessera import settings, target
from tessera.backend import registry
from tessera.backend.contract import GpuKernelObject
from tessera.backend.cuda_tile import CudaTileBackend
from tessera.backend.cuda_tile.emission.emitter import element_of
from tessera.backend.cuda_tile.emission.kernel import Emitted, emit
from tessera.backend.cuda_tile.program.text import text_of
from tessera.backend.gpu_objects import LaunchFacts
from tessera.compiler import pipeline
from tessera.errors import CompileError
from tessera.ir.attributes import ELEMENT_TYPES
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.tile.facts import static_strides
from tessera.ir.tile.operations import find_kernel, integers
from tessera.runtime.devices.device import Grid, Loaded, use_driver
from tessera.runtime.devices.interpreter_device import InterpreterDriver
from tessera.target import Target
from tests.unit.backend.cuda_tile.interpretation import DTYPES, run


@dataclass
class Interpreted:
    """What has been compiled, by the text of its program, and how often each kernel was launched."""

    kernels: dict[str, tuple[Emitted, ModuleOp]] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)


class _Backend(CudaTileBackend):
    """Programs without machine code."""

    device = "interpreter"

    def __init__(self, known: Interpreted) -> None:
        self.known = known

    def version(self) -> str:
        return "interpreted"

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        return [self._object(module, target) for module in modules]

    def _object(self, module: ModuleOp, target: Target) -> GpuKernelObject:
        emitted = emit(module, target)
        text = text_of(emitted.program)
        self.known.kernels[text] = emitted, module
        launch = LaunchFacts(is_tile=True)
        name = emitted.program.name
        return GpuKernelObject(b"", name, text, target.arch, 1, 0, emitted.parameters, launch, "interpreted", 0, 0)


@dataclass(frozen=True, eq=False)
class _Loaded:
    kernel: GpuKernelObject


class _Driver(InterpreterDriver):
    """Runs them."""

    def __init__(self, target: Target, known: Interpreted) -> None:
        super().__init__(target)
        self.known = known

    def load(self, kernel: GpuKernelObject) -> Loaded:
        return _Loaded(kernel)

    def launch(self, kernel: Loaded, grid: Grid, arguments: Sequence[int | float], stream: int) -> None:
        emitted, module = self.known.kernels[kernel.kernel.source]
        name = kernel.kernel.entry
        self.known.launches[name] = self.known.launches.get(name, 0) + 1
        given = _arguments(emitted, module, arguments)
        op = find_kernel(module)
        outputs = integers(op.outputs)
        # CUDA Tile IR's bytes have no sign, Tile IR's have.
        kinds = [getattr(argument.type, "element_type", None) for argument in op.body.block.args]
        typed = [
            each.view(torch.uint8) if kind == ELEMENT_TYPES["uint8"] else each
            for each, kind in zip(given, kinds, strict=True)
        ]
        expected = [each.clone() if number in outputs else each for number, each in enumerate(typed)]
        run_kernel(module, expected, partition=random.Random(0))
        launched = []
        for each in emitted.parameters:
            value, role = given[each.argument], each.role
            launched.append(
                value.shape[each.dim] if role == "size" else value.stride(each.dim) if role == "stride" else value
            )
        run(emitted.program, launched, grid[0])
        for number in outputs:
            _close(typed[number], expected[number])


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Sums may be formed in another order; all else is the same."""
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), rtol=64 * eps, atol=64 * eps, equal_nan=True)


def _arguments(emitted: Emitted, module: ModuleOp, numbers: Sequence[int | float]) -> list[Any]:
    """The arguments of a kernel as Tile IR's interpreter takes them."""
    words = {
        (each.argument, each.role, each.dim): number for each, number in zip(emitted.parameters, numbers, strict=True)
    }
    found: list[Any] = []
    for argument in find_kernel(module).body.block.args:
        number, kind = argument.index, argument.type
        first = words[number, "argument", 0]
        if not isinstance(kind, MemRefType):
            found.append(first)
            continue
        shape = [int(words[number, "size", dim]) if each < 0 else each for dim, each in enumerate(kind.get_shape())]
        strides = [
            int(words[number, "stride", dim]) if each is None else each for dim, each in enumerate(static_strides(kind))
        ]
        found.append(_tensor(int(first), shape, strides, DTYPES[element_of(kind).name]))
    return found


def _tensor(address: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if not all(shape):
        return torch.empty(tuple(shape), dtype=dtype)
    memory = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(address)
    return torch.as_strided(torch.frombuffer(memory, dtype=dtype), tuple(shape), tuple(strides))


@contextmanager
def interpreting() -> Iterator[Interpreted]:
    """Inside, the device "interpreter" runs programs of CUDA Tile IR."""
    known = Interpreted()
    before = registry._found.get(("interpreter", ""))
    registry._found["interpreter", ""] = _Backend(known)
    driver = use_driver("interpreter", _Driver(target.gpu(settings.current().interpreter_target), known))
    try:
        yield known
    finally:
        use_driver("interpreter", driver)
        registry._found.pop(("interpreter", ""))
        if before is not None:
            registry._found["interpreter", ""] = before
        pipeline.forget_plans()
