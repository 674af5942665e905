"""LLVM IR text to loaded machine code, for Tessera's own native helpers (the plan driver, the ceiling probes).

Kernels have their own engine with passes, options and a shared object cache; what is here serves a handful of small,
fixed texts. An object is kept on disk under a name that holds everything it depends on: the text, the exact CPU with
its features, and LLVM's version, so that a home shared by two kinds of CPU holds one object for each.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from tessera.backend.llvm.machine_code.loading import MachineCode, load_object
from tessera.errors import CacheFormatError
from tessera.system.private import PrivateFolder

_OBJECT_BYTES = 1 << 26
"""Most bytes of one object."""


def compile_text(text: str) -> bytes:
    """The relocatable object of `text` for this CPU. The text is compiled as it stands: no mid-level passes run.

    Raises RuntimeError (from LLVM) when the text does not parse or verify.
    """
    from tessera.backend.llvm.machine_code import engine

    return engine.compile_helper(text)


def identity(text: str) -> str:
    """A hash over everything that the object of `text` depends on."""
    from tessera.backend.llvm.machine_code import engine

    parts = (text, *engine.host(), repr(engine.llvm_version()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cached_library(name: str, text: str, directory: Path) -> MachineCode:
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
