"""Objects in memory: machine code that was made before is loaded without LLVM where this machine allows it."""

from __future__ import annotations

from typing import Protocol

from tessera.backend.contract import KernelObject
from tessera.backend.elf import LinkedObject, is_linked_here
from tessera.errors import CompileError, UnsupportedTargetError
from tessera.target import amx_refusal, lacking


class MachineCode(Protocol):
    """Loaded machine code. Addresses stay valid as long as this object lives."""

    def address(self, name: str) -> int:
        """The address of a function or variable of the code. Raises KeyError where it has none of that name."""


def load_object(code: bytes) -> MachineCode:
    """Links an object into this process. Raises CompileError for what it asks for and the process does not have."""
    if is_linked_here():
        return LinkedObject(code)
    from tessera.backend.llvm.machine_code.engine import LoadedCode

    return LoadedCode(code)


class LoadedObject:
    """A kernel in memory: `address` stays valid as long as this object lives."""

    __slots__ = ("_code", "address", "kernel")

    def __init__(self, kernel: KernelObject) -> None:
        missing = lacking(kernel.features)
        if missing:
            raise UnsupportedTargetError(
                f"kernel {kernel.entry} was compiled for {kernel.arch}; this CPU lacks {', '.join(missing[:5])}",
                hints=["compile it again on this machine"],
            )
        if "amx-tile" in kernel.features and (reason := amx_refusal()) is not None:
            raise UnsupportedTargetError(f"kernel {kernel.entry} was compiled for a CPU with a matrix unit: {reason}")
        self._code = load_object(kernel.code)
        try:
            self.address = self._code.address(kernel.entry)
        except KeyError:
            raise CompileError(f"the object holds no function {kernel.entry}") from None
        self.kernel = kernel
