"""The CUDA Tile backend: Tile IR and an NVIDIA GPU in, NVIDIA's tile-level IR or kernel objects out.

Its compiler, `tileiras`, decides what a schedule says by hand for Triton: warps and their roles, stages, which engine
moves a tile. It runs as a program of its own, and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backend.contract import GpuKernelObject, Kind, StaticFacts
from tessera.errors import CompileError
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class CudaTileBackend:
    """Tile IR to programs of CUDA Tile IR, and to machine code of NVIDIA's GPUs from compute capability 8.0 on."""

    device = "cuda"

    def version(self) -> str:
        """The version of tileiras. Raises UnsupportedTargetError where it is not installed."""
        from tessera.backend.cuda_tile.compilation.assembler import version

        return version()

    def preload(self, compiles: bool = True) -> None:
        """Imports what writes programs; kernels are loaded by drivers."""
        if compiles:
            from tessera.backend.cuda_tile.compilation import kernels  # noqa: F401

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """The program as text ("source"), or the bytes of a `GpuKernelObject` container ("object").

        Raises CompileError for Tile IR that CUDA Tile IR cannot express, for a target that is no GPU, and for "asm".
        """
        _require_gpu(target)
        if kind == "object":
            return self.compile(module, target).to_bytes()
        if kind != "source":
            raise CompileError(f"the CUDA Tile backend gives source and objects, not {kind}")
        from tessera.backend.cuda_tile.emission.kernel import emit
        from tessera.backend.cuda_tile.program.text import text_of

        return text_of(emit(module, target).program)

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> GpuKernelObject:
        """The module's kernel, compiled for `target` (which need not be there) or found on disk.

        Raises CompileError for what cannot be expressed or is refused, and for a target that is no GPU;
        UnsupportedTargetError where tileiras is not installed, or has no code for the target.
        """
        (kernel,) = self.compile_all([module], target, keep)
        if isinstance(kernel, CompileError):
            raise kernel
        return kernel

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        """The same of each module, or why it does not compile. Raises what `compile` raises but for CompileError."""
        _require_gpu(target)
        from tessera.backend.cuda_tile.compilation.kernels import kernel_objects

        return kernel_objects(modules, target)

    def facts(self, modules: Sequence[ModuleOp], target: Target) -> list[StaticFacts | CompileError]:
        """What each kernel becomes. Raises what `compile_all` raises."""
        _require_gpu(target)
        from tessera.backend.cuda_tile.compilation.kernels import facts_of

        return facts_of(modules, target)

    def tick_ns(self, target: Target) -> float:
        """There is no clock: kernels that are timed are compiled by the backend "triton". Raises CompileError."""
        raise CompileError("CUDA Tile IR has no clock to time tiles by", hints=["time them by the backend 'triton'"])


def _require_gpu(target: Target) -> None:
    if target.kind != "gpu":
        raise CompileError(f"CUDA Tile kernels run on GPUs; {target.name} is none", hints=["name a GPU"])
