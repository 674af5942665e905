"""Running kernels of the LLVM backend on torch tensors, on operands whose surroundings must not be touched."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from xdsl.dialects.builtin import ModuleOp

from tessera.backend.contract import KernelObject
from tessera.backend.llvm import LLVMBackend
from tessera.ir.parsing import parse
from tessera.runtime.plans.calling import Argument, words_of
from tessera.target import Target, detect

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_CANARY_BYTES = 256
_CANARY = 0xA5


def avx2() -> Target:
    """This machine's CPU as if it had AVX2 and nothing beyond."""
    host = detect()
    narrow = frozenset(name for name in host.features if not name.startswith("avx512") and name != "evex512")
    return replace(host, features=narrow, vector_bits=256, vector_registers=16)


def targets() -> list[Target]:
    """The CPUs whose code runs on this machine."""
    host = detect()
    return [host, avx2()] if host.has_avx512 else [host]


def run(kernel: KernelObject, arguments: Sequence[Argument], workers: int = 1) -> None:
    """Runs all shares of a kernel one after the other, on scratch memory that ends in a canary."""
    loaded = LLVMBackend().load(kernel)
    function = _KERNEL(loaded.address)
    table, descriptors = words_of(kernel, arguments)
    size = kernel.workspace_bytes
    memory = torch.full((size + 64 + _CANARY_BYTES,), _CANARY, dtype=torch.uint8)
    start = -memory.data_ptr() % 64
    workspace = memory.data_ptr() + start
    for worker in range(workers):
        function(ctypes.addressof(table), ctypes.addressof(descriptors), worker, workers, workspace)
    assert bool((memory[:start] == _CANARY).all()), "scratch memory was written before its start"
    assert bool((memory[start + size :] == _CANARY).all()), "scratch memory was written behind its end"


def compile_text(text: str, target: Target | None = None) -> KernelObject:
    """The kernel in a text of Tile IR, compiled without the disk cache."""
    return compile_module(parse(text), target)


def compile_module(module: ModuleOp, target: Target | None = None) -> KernelObject:
    """A module's kernel, compiled without the disk cache."""
    return LLVMBackend().compile(module, target or detect(), keep=False)


class Guarded:
    """A tensor between canaries: `tensor` is laid out with the given strides, the memory between its elements too is
    checked.
    """

    def __init__(self, values: torch.Tensor, strides: Sequence[int] | None = None) -> None:
        strides = list(values.stride()) if strides is None else list(strides)
        extent = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True)) if values.numel() else 0
        margin = _CANARY_BYTES // values.element_size()
        self._bytes = torch.full(((extent + 2 * margin) * values.element_size(),), _CANARY, dtype=torch.uint8)
        storage = self._bytes.view(values.dtype)
        self.tensor = storage.as_strided(values.shape, strides, margin)
        # Along a stride of 0 all elements are one.
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        self.tensor[first].copy_(values[first])
        self._before = self._bytes.clone()
        self._writable = torch.zeros(extent + 2 * margin, dtype=torch.bool)
        self._writable.as_strided(values.shape, strides, margin).fill_(True)
        self._size = values.element_size()

    def check(self, output: bool) -> None:
        """Asserts that nothing but an output's own elements has changed."""
        changed = (self._bytes != self._before).view(-1, self._size).any(1)
        if output:
            changed &= ~self._writable
        assert not bool(changed.any()), "memory around an operand was written"
