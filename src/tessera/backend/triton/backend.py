"""The Triton backend, as the contract has it. It prints source; xDSL is loaded at first use, Triton never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backend.contract import KernelObject, Kind, LoadedKernel
from tessera.errors import CompileError
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class TritonBackend:
    """Tile IR to the source of a Triton kernel with a launcher that takes torch tensors."""

    @property
    def consumes(self) -> Sequence[str]:
        """No optional pass: Triton places barriers and asynchronous copies itself."""
        return ()

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """Triton source, a Python module: the kernel, and `launch`, which runs it on torch tensors and numbers.

        Raises CompileError for Tile IR that Triton cannot express, for a target that is no GPU, and for any other kind:
        Triton compiles its source itself, where the kernel is first launched.
        """
        if target.kind != "gpu":
            raise CompileError(f"Triton kernels run on GPUs; {target.name} is none", hints=["name a GPU"])
        if kind != "source":
            raise CompileError(f"the Triton backend gives source, not {kind}: running Triton kernels is not built yet")
        from tessera.backend.triton.kernel import generate

        return generate(module, target)

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> KernelObject:
        """Raises CompileError: a kernel object holds machine code of a CPU."""
        raise CompileError("running Triton kernels is not built yet", hints=["emit their source, and launch that"])

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """Raises CompileError, as `compile` does."""
        raise CompileError("running Triton kernels is not built yet", hints=["emit their source, and launch that"])
