"""Compiled kernels on disk: found again by what they were made of, never trusted when they look damaged or when others
can have written them.

One file per kernel under a name that hashes everything its code depends on: the Tile IR, the exact CPU with its
features, LLVM's version and the generator itself. So a home that two kinds of CPU share holds one file for each, and
nothing ever has to be thrown away for being of another version. Files appear whole or not at all (`os.replace`);
writers that meet write the same bytes.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.backend.contract import KernelObject
from tessera.errors import CacheFormatError, CacheIOError, CacheUntrustedError
from tessera.system.private import PrivateFolder
from tessera.system.sources import python_sources
from tessera.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Attribute, Block, Operation, SSAValue

_SUFFIX = ".kernel"
_OBJECT_BYTES = 1 << 26
"""Most bytes of one kernel; they take some ten thousand."""


class CacheUnwritableWarning(UserWarning):
    """Compiled kernels cannot be kept on disk, so that every process compiles them anew."""


class ObjectCache:
    """The kernels in one folder. Nothing here fails: what cannot be read or written costs a compilation."""

    def __init__(self, directory: Path) -> None:
        self._folder = PrivateFolder(directory)
        self._warned = False

    def find(self, identity: str) -> KernelObject | None:
        """The kernel of this identity, None where there is no sound one that nobody else can have written."""
        data = self._folder.find(_name(identity), _OBJECT_BYTES)
        try:
            return None if data is None else KernelObject.from_bytes(data)
        except CacheFormatError as error:
            self._folder.refuse(CacheFormatError(f"{self._folder.path / _name(identity)}: {error.message}"))
            return None

    def keep(self, identity: str, kernel: KernelObject) -> None:
        """Writes a kernel. A folder that cannot be written is warned about once, with its code E_CACHE_IO."""
        try:
            self._folder.write(_name(identity), kernel.to_bytes())
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        hints = ["set TESSERA_CACHE_DIR to a folder that can be written"]
        failure = CacheIOError(f"compiled kernels cannot be kept in {self._folder.path}: {_reason(error)}", hints=hints)
        warnings.warn(str(failure), CacheUnwritableWarning, stacklevel=4)


def _name(identity: str) -> str:
    return f"{identity}{_SUFFIX}"


def _reason(error: OSError) -> str:
    return error.message if isinstance(error, CacheUntrustedError) else str(error)


def identity(module: ModuleOp, target: Target, llvm_version: str) -> str:
    """A hash over everything that a kernel's code depends on."""
    digest = hashlib.sha256()
    for part in (*fingerprint(module), target.arch, *sorted(target.features), llvm_version, generator_revision()):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]


@cache
def generator_revision() -> str:
    """A hash of the sources of this package, so that no change of the generator can be forgotten."""
    digest = hashlib.sha256()
    for _, content in python_sources("backend/llvm"):
        digest.update(content)
    return digest.hexdigest()


def fingerprint(module: ModuleOp) -> Iterator[str]:
    """The module in parts of text that are equal for equal modules: as its printed form, at a third of the time."""
    numbers: dict[SSAValue, int] = {}
    for op in module.body.block.ops:
        yield from _operation(op, numbers)


def _operation(op: Operation, numbers: dict[SSAValue, int]) -> Iterator[str]:
    yield op.name
    yield ",".join(str(numbers[operand]) for operand in op.operands)
    for key, attribute in sorted((*op.properties.items(), *op.attributes.items())):
        yield f"{key}={_text(attribute)}"
    for result in op.results:
        numbers[result] = len(numbers)
        yield _text(result.type)
    for region in op.regions:
        yield "{"
        for block in region.blocks:
            yield from _block(block, numbers)
        yield "}"


def _block(block: Block, numbers: dict[SSAValue, int]) -> Iterator[str]:
    for argument in block.args:
        numbers[argument] = len(numbers)
        yield _text(argument.type)
    yield ":"
    for op in block.ops:
        yield from _operation(op, numbers)


@lru_cache(maxsize=4096)
def _text(attribute: Attribute) -> str:
    return str(attribute)
