"""LLVM IR text to loaded machine code, for Tessera's own native helpers (the plan driver, the ceiling probes).

Kernels have their own engine with passes, options and a shared object cache; what is here serves a handful of small,
fixed texts. An object is kept on disk under a name that holds everything it depends on: the text, the exact CPU with
its features, and LLVM's version, so that a home shared by two kinds of CPU holds one object for each.
"""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from tessera.backend.llvm import engine
from tessera.errors import CacheFormatError
from tessera.private import PrivateFolder

_OBJECT_BYTES = 1 << 26
"""Most bytes of one object."""


class NativeLibrary:
    """Loaded machine code. Function addresses stay valid as long as this object lives."""

    __slots__ = ("_engine", "_machine")

    def __init__(self, engine: Any, machine: Any) -> None:
        self._engine = engine
        self._machine = machine

    def address(self, name: str) -> int:
        """The address of function or global `name`, never 0. Raises KeyError when the code has no such symbol."""
        address = int(self._engine.get_function_address(name)) or int(self._engine.get_global_value_address(name))
        if not address:
            raise KeyError(name)
        return address


@cache
def _host() -> tuple[str, str]:
    """Name and features of this CPU, in LLVM's words."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _target_machine() -> Any:
    engine.initialize()
    name, features = _host()
    return llvm.Target.from_default_triple().create_target_machine(cpu=name, features=features, opt=2, jit=True)


def compile_text(text: str) -> bytes:
    """The relocatable object of `text` for this CPU. The text is compiled as it stands: no mid-level passes run.

    Raises RuntimeError (from LLVM) when the text does not parse or verify.
    """
    with engine.lock:
        machine = _target_machine()
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_process_triple()
        module.data_layout = str(machine.target_data)
        module.verify()
        return bytes(machine.emit_object(module))


def load_object(data: bytes) -> NativeLibrary:
    """Links an object made by `compile_text` into this process."""
    with engine.lock:
        machine = _target_machine()
        linked = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        linked.add_object_file(llvm.ObjectFileRef.from_data(data))
        linked.finalize_object()
        return NativeLibrary(linked, machine)


def identity(text: str) -> str:
    """A hash over everything that the object of `text` depends on."""
    with engine.lock:
        host = _host()
    parts = (text, *host, repr(llvm.llvm_version_info))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached_library(name: str, text: str, directory: Path) -> NativeLibrary:
    """`text` loaded, its object taken from `directory` when there is a sound one, else compiled and put there.

    A file that is cut short or altered (its digest does not match), or that somebody else can have written, is refused
    with a warning and compiled again; a directory that cannot be written only costs the time to compile. None of these
    is an error: the object can always be made anew.
    """
    folder, file_name = PrivateFolder(directory), f"{name}-{identity(text)}.o"
    stored = folder.find(file_name, _OBJECT_BYTES)
    data = (stored or b"")[32:]
    if stored is None or hashlib.sha256(data).digest() != stored[:32]:
        if stored is not None:
            folder.refuse(
                CacheFormatError(f"{directory / file_name} is cut short or altered: its digest does not match")
            )
        data = compile_text(text)
        with contextlib.suppress(OSError):
            folder.write(file_name, hashlib.sha256(data).digest() + data)
    return load_object(data)
