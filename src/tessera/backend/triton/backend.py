"""The Triton backend: Tile IR and a GPU in, source or kernel objects out. xDSL is loaded at first use; Triton runs in a
process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backend.contract import GpuKernelObject, Kind, StaticFacts
from tessera.errors import CompileError
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class TritonBackend:
    """Tile IR to the source of a Triton kernel with a launcher that takes torch tensors, and to machine code of a GPU.

    Kernel objects are loaded and launched by the GPU's driver (`tessera.runtime.devices.device.driver_of`).
    """

    device = "cuda"

    def version(self) -> str:
        """The version of Triton. Raises UnsupportedTargetError where it is not installed."""
        from tessera.backend.triton.compilation.static import triton_version

        return triton_version()

    def preload(self, compiles: bool = True) -> None:
        """Imports the printer; Triton itself is imported by processes of its own, kernels are loaded by drivers."""
        if compiles:
            from tessera.backend.triton.compilation import static  # noqa: F401

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
        from tessera.backend.triton.printing.kernel import generate

        return generate(module, target)

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> GpuKernelObject:
        """The module's kernel, compiled for `target` (which need not be there) or found on disk, where all kernels are
        kept.

        Raises CompileError for what Triton cannot express or refuses, and for a target that is no GPU;
        UnsupportedTargetError where Triton is not installed; CacheIOError where the cache folder cannot be written.
        """
        (kernel,) = self.compile_all([module], target, keep)
        if isinstance(kernel, CompileError):
            raise kernel
        return kernel

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        """The same of each module, those that are new in one go, or why it does not compile. Raises what `compile`
        raises, CompileError for Tile IR that cannot be printed.
        """
        _require_gpu(target)
        from tessera.backend.triton.compilation.static import kernel_objects

        return kernel_objects(modules, target)

    def facts(self, modules: Sequence[ModuleOp], target: Target) -> list[StaticFacts | CompileError]:
        """What each kernel becomes (`static.static_facts`). Raises what `compile_all` raises."""
        _require_gpu(target)
        from tessera.backend.triton.compilation.static import static_facts

        return static_facts(modules, target)

    def tick_ns(self, target: Target) -> float:
        """Nanoseconds in which a GPU's clock counts one."""
        from tessera.backend.triton.printing.tile_clock import tick_ns

        return tick_ns(target)


def _require_gpu(target: Target) -> None:
    if target.kind != "gpu":
        raise CompileError(f"Triton kernels run on GPUs; {target.name} is none", hints=["name a GPU"])
