"""Plans of the CPU whose kernels the interpreter of Tile IR runs: the real pipeline and memory, without LLVM's code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.backend.contract import KernelObject, LoadedKernel, Parameter
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.dtypes import dtype_of
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.target import Target

_ABI = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class NotInterpretedError(Exception):
    """A kernel over memory that torch has no views of: strides that run backwards."""


class _Interpreted:
    """A kernel as a function of the kernels' ABI that interprets its Tile IR on worker 0, for all workers."""

    def __init__(self, kernel: KernelObject, module: ModuleOp, failures: list[BaseException]) -> None:
        self.kernel = kernel
        self._module = module
        self._failures = failures
        self._function = _ABI(self._run)
        self.address = int(ctypes.cast(self._function, ctypes.c_void_p).value or 0)

    def _run(self, table: int, descriptors: int, worker: int, workers: int, workspace: int) -> None:
        if worker or self._failures:
            return
        try:
            run_kernel(self._module, self._arguments(table, descriptors))
        except BaseException as failure:  # noqa: BLE001
            # Nothing may be raised through the native code that calls this: `interpreted` raises it.
            self._failures.append(failure)

    def _arguments(self, table: int, descriptors: int) -> list[Any]:
        place, arguments = 0, []
        for parameter in self.kernel.parameters:
            words = (ctypes.c_int64 * parameter.descriptor_words).from_address(descriptors + 8 * place)
            word = ctypes.c_int64.from_address(table + 8 * words[0])
            arguments.append(_number(parameter, word) if parameter.is_scalar else _buffer(parameter, word.value, words))
            place += parameter.descriptor_words
        return arguments


def _number(parameter: Parameter, word: Any) -> int | float:
    if parameter.dtype == "index":
        return int(word.value)
    dtype = dtype_of(parameter.dtype)
    value = torch.frombuffer(word, dtype=torch.uint8)[: dtype.itemsize].view(dtype.torch)
    return value.item()


def _buffer(parameter: Parameter, address: int, words: Any) -> torch.Tensor:
    assert parameter.extents is not None
    rank = len(parameter.extents)
    extents, strides = list(words[2 : 2 + rank]), list(words[2 + rank :])
    dtype = dtype_of(parameter.dtype)
    if any(stride < 0 and extent > 1 for extent, stride in zip(extents, strides, strict=True)):
        raise NotInterpretedError
    strides = [max(stride, 0) for stride in strides]
    if 0 in extents:
        return torch.empty(1, dtype=dtype.torch).as_strided(extents, strides)
    last = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
    memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(address + words[1])
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype.torch).as_strided(extents, strides)


class _InterpretingBackend(LLVMBackend):
    """The backend whose kernels are compiled, for what callers must know of them, and then interpreted."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__()
        self._failures = failures
        self._modules: dict[int, tuple[KernelObject, ModuleOp]] = {}

    def stored(self, key: str, make: Callable[[], ModuleOp], target: Target) -> KernelObject:
        """The kernel, whose module is remembered."""
        module = make()
        kernel = super().stored(key, make, target)
        self._modules[id(kernel)] = kernel, module
        return kernel

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """The kernel, interpreted."""
        return _Interpreted(kernel, self._modules[id(kernel)][1], self._failures)


@contextmanager
def interpreted() -> Iterator[None]:
    """Has plans that are bound meanwhile interpret their kernels.

    Raises what the interpreter raised, at the end of the block.
    """
    failures: list[BaseException] = []
    compiler = DeviceCompiler(target.detect(), _InterpretingBackend(failures))
    with patch.object(compilers, "kernel_compiler", lambda: compiler):
        yield
    if failures:
        raise failures[0]
