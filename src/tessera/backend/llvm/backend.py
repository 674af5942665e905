"""The LLVM backend for CPUs, as the contract has it. xDSL and llvmlite are loaded at first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backend.contract import Kind, KernelObject, LoadedKernel
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backend.llvm.kernel import KernelText


class LLVMBackend:
    """Tile IR to machine code of the CPU that a target describes."""

    @property
    def consumes(self) -> Sequence[str]:
        """No optional pass: a CPU needs neither barriers nor asynchronous copies."""
        return ()

    def emit(self, module: ModuleOp, target: Target, kind: Kind, optimize: bool = True) -> str | bytes:
        """LLVM IR ("source"), assembly ("asm") or the bytes of a `KernelObject` container ("object").

        Raises CompileError for Tile IR that has no code, UnsupportedTargetError for CPUs without AVX2 or NEON.
        """
        if kind == "object":
            return self.compile(module, target, optimize).to_bytes()
        text = _generate(module, target).text
        if kind == "source":
            return text
        from tessera.backend.llvm import engine

        return engine.assembly(text, target, optimize)

    def compile(self, module: ModuleOp, target: Target, optimize: bool = True) -> KernelObject:
        """The module's kernel, compiled for `target`; see `Backend.compile`."""
        from tessera.backend.llvm import engine

        kernel = _generate(module, target)
        return KernelObject(
            code=engine.compile_object(kernel.text, target, optimize),
            entry=kernel.entry,
            workspace_bytes=kernel.workspace_bytes,
            parameters=kernel.parameters,
            outputs=kernel.outputs,
            arch=target.arch,
            features=tuple(sorted(target.features)),
        )

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """The kernel in this process. Raises UnsupportedTargetError when this CPU lacks a feature it relies on."""
        from tessera.backend.llvm.engine import LoadedObject

        return LoadedObject(kernel)


def _generate(module: ModuleOp, target: Target) -> KernelText:
    from tessera.backend.llvm.kernel import generate

    target.require_supported()
    return generate(module, target)
