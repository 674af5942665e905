"""The Triton backend: Tile IR and a GPU in, source or kernel objects out. xDSL is loaded at first use; Triton runs in a
process of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tessera.backend.contract import Kind
from tessera.backend.triton.objects import GpuKernelObject
from tessera.errors import CompileError
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class TritonBackend:
    """Tile IR to the source of a Triton kernel with a launcher that takes torch tensors, and to machine code of a GPU.

    Kernel objects are loaded and launched by the GPU's driver (`tessera.runtime.device.driver_of`).
    """

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """Triton source, a Python module: the kernel, and `launch`, which runs it on torch tensors and numbers; or the
        bytes of a `GpuKernelObject` container ("object").

        Raises CompileError for Tile IR that Triton cannot express, for a target that is no GPU, and for "asm".
        """
        _require_gpu(target)
        if kind == "object":
            return self.compile(module, target).to_bytes()
        if kind != "source":
            raise CompileError(f"the Triton backend gives source and objects, not {kind}")
        from tessera.backend.triton.kernel import generate

        return generate(module, target)

    def compile(
        self, module: ModuleOp, target: Target, divisible: Collection[str] = (), note: str = ""
    ) -> GpuKernelObject:
        """The module's kernel, compiled for `target` (which need not be there) or found on disk.

        `divisible` names the printed parameters that are promised to be multiples of 16, besides pointers, which all
        are; `note` becomes a comment in the source. Raises CompileError for what Triton cannot express or refuses, and
        for a target that is no GPU; UnsupportedTargetError where Triton is not installed; CacheIOError where the cache
        folder cannot be written.
        """
        _require_gpu(target)
        from tessera.backend.triton.static import Candidate, kernel_objects

        (kernel,) = kernel_objects([Candidate(module, divisible, note)], target)
        if isinstance(kernel, CompileError):
            raise kernel
        return kernel


def _require_gpu(target: Target) -> None:
    if target.kind != "gpu":
        raise CompileError(f"Triton kernels run on GPUs; {target.name} is none", hints=["name a GPU"])
