"""The LLVM backend for CPUs, as the contract has it. xDSL and llvmlite are loaded at first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tessera import settings
from tessera.backend.contract import KernelObject, Kind, LoadedKernel
from tessera.backend.llvm.machine_code.objects import ObjectCache, identity
from tessera.errors import CompileError
from tessera.target import CoreFacts, Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backend.llvm.emission.kernel import KernelText


class LLVMBackend:
    """Tile IR to machine code of the CPU that a target describes.

    Optimized kernels are kept in `cache` (default: the folder that the settings name) and found there again.
    """

    def __init__(self, cache: ObjectCache | None = None) -> None:
        self._cache = cache

    device = "cpu"

    def version(self) -> str:
        """LLVM's version, as "20.1.8"."""
        from tessera.backend.llvm.machine_code.engine import llvm_version

        return llvm_version()

    def preload(self, compiles: bool = True) -> None:
        """Imports what loads kernels, and llvmlite with the generator unless kernels are loaded only."""
        from tessera.backend.llvm.machine_code import loading  # noqa: F401

        if compiles:
            from tessera.backend.llvm.emission import kernel  # noqa: F401
            from tessera.backend.llvm.machine_code import engine  # noqa: F401
            from tessera.backend.llvm.native import driver_ir  # noqa: F401

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """LLVM IR ("source"), assembly ("asm") or the bytes of a `KernelObject` container ("object").

        Raises CompileError for Tile IR that has no code, UnsupportedTargetError for CPUs without AVX2 or NEON.
        """
        if kind == "object":
            return self.compile(module, target).to_bytes()
        target.require_supported()
        text = _generate(module, target).text
        if kind == "source":
            return text
        from tessera.backend.llvm.machine_code import engine

        return engine.assembly(text, target)

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> KernelObject:
        """The module's kernel, compiled for `target` or found on disk; compiled anew and not kept unless `keep`.

        Raises CompileError for Tile IR that has no code, UnsupportedTargetError for CPUs without AVX2 or NEON.
        """
        target.require_supported()
        if not keep:
            return _compile(module, target)
        return self.stored(identity(module, target, self.version()), lambda: module, target)

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[KernelObject | CompileError]:
        """The same of each module, or why it does not compile. Raises UnsupportedTargetError as `compile` does."""
        made: list[KernelObject | CompileError] = []
        for module in modules:
            try:
                made.append(self.compile(module, target, keep))
            except CompileError as error:
                made.append(error)
        return made

    def stored(self, key: str, make: Callable[[], ModuleOp], target: Target) -> KernelObject:
        """The kernel kept under `key`, which must say all that its code depends on; where there is none, or only a
        damaged one, that of the module that `make` gives, which is then kept.

        Raises what `compile` raises.
        """
        target.require_supported()
        cache = self._cache or _settings_cache(settings.current().objects_dir)
        kernel = cache.find(key)
        if kernel is None:
            kernel = _compile(make(), target)
            cache.keep(key, kernel)
        return kernel

    def core_facts(self, target: Target) -> CoreFacts:
        """What one core of this machine was found to do; measured now where that is not known yet."""
        from tessera.backend.llvm import core_facts

        return core_facts.known(target)

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """The kernel in this process. Raises UnsupportedTargetError when this CPU lacks a feature it relies on."""
        from tessera.backend.llvm.machine_code.loading import LoadedObject

        return LoadedObject(kernel)


@lru_cache(maxsize=4)
def _settings_cache(directory: Path) -> ObjectCache:
    """One cache per folder, because it warns once."""
    return ObjectCache(directory)


def _compile(module: ModuleOp, target: Target) -> KernelObject:
    from tessera.backend.llvm.machine_code import engine

    kernel = _generate(module, target)
    return KernelObject(
        code=engine.compile_object(kernel.text, target),
        entry=kernel.entry,
        workspace_bytes=kernel.workspace_bytes,
        parameters=kernel.parameters,
        outputs=kernel.outputs,
        arch=target.arch,
        features=tuple(sorted(target.features)),
        timed=kernel.timed,
    )


def _generate(module: ModuleOp, target: Target) -> KernelText:
    from tessera.backend.llvm.emission.kernel import generate

    return generate(module, target)
