"""Kernels compiled by tileiras, and what they become on a GPU that need not be there.

Kept beside each other under `cuda_tile/` in the cache folder, by a hash of the program and the target: the program as
text (`.tileir`), facts (`.json`), machine code (`.cubin`). What is missing, damaged or of another version of the
compiler is compiled again; where no compiler is installed, whatever is kept is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from xdsl.dialects.builtin import ModuleOp

from tessera import settings
from tessera.backend.cuda_tile.compilation import assembler
from tessera.backend.cuda_tile.compilation.cubin import usage
from tessera.backend.cuda_tile.compilation.disassembly import instructions
from tessera.backend.cuda_tile.emission.kernel import Emitted, emit
from tessera.backend.cuda_tile.program.bytecode import encode
from tessera.backend.cuda_tile.program.text import text_of
from tessera.backend.gpu_objects import GpuKernelObject, LaunchFacts, StaticFacts
from tessera.errors import CacheFormatError, CacheIOError, CompileError
from tessera.system.private import PrivateFolder
from tessera.target import Target

_FILE_BYTES: Final = 1 << 27
_WARP: Final = 32
_LAUNCH: Final = LaunchFacts(is_tile=True)
_KEPT: Final = {field.name for field in fields(StaticFacts)} - {"source"}


@dataclass(frozen=True)
class _Request:
    """A kernel to compile, and its files."""

    emitted: Emitted
    text: str
    stem: Path

    @property
    def entry(self) -> str:
        """The name of its function."""
        return self.emitted.program.name


def facts_of(modules: Sequence[ModuleOp], target: Target) -> list[StaticFacts | CompileError]:
    """What each kernel becomes, or why it does not compile."""
    return [found if isinstance(found, CompileError) else found[0] for found in _all(modules, target)]


def kernel_objects(modules: Sequence[ModuleOp], target: Target) -> list[GpuKernelObject | CompileError]:
    """Each kernel ready to be launched, or why it does not compile."""
    return [
        found
        if isinstance(found, CompileError)
        else GpuKernelObject(
            image=found[1],
            entry=found[2].entry,
            source=found[2].text,
            arch=target.arch,
            threads=found[0].warps * _WARP,
            shared_bytes=found[0].shared_bytes,
            parameters=found[2].emitted.parameters,
            launch=_LAUNCH,
            compiler=found[0].compiler,
            registers=found[0].registers,
            spill_bytes=found[0].spill_bytes,
        )
        for found in _all(modules, target)
    ]


_Known = tuple[StaticFacts, bytes, _Request]


def _all(modules: Sequence[ModuleOp], target: Target) -> list[_Known | CompileError]:
    assembler.require_architecture(target)
    found: list[_Known | CompileError] = []
    for module in modules:
        try:
            found.append(_one(module, target))
        except CompileError as problem:
            found.append(problem)
    return found


def _one(module: ModuleOp, target: Target) -> _Known:
    emitted = emit(module, target)
    text = text_of(emitted.program)  # without the schedule: those that differ in what tileiras chooses share a kernel
    digest = hashlib.sha256(json.dumps([text, target.arch]).encode()).hexdigest()[:16]
    stem = settings.current().cuda_tile_dir / f"{emitted.program.name}-{target.arch}-{digest}"
    request = _Request(emitted, text, stem)
    known, version = _remembered(request), assembler.installed()
    if known is not None and version in (None, known[0].compiler):
        return known
    return _compiled(request, target, assembler.version())


def _compiled(request: _Request, target: Target, version: str) -> _Known:
    made = assembler.assemble(encode(request.emitted.program), target)
    used = usage(made.image, request.entry)
    source = request.stem.with_suffix(".tileir")
    facts = StaticFacts(
        compiler=version,
        registers=used.registers,
        spill_bytes=used.stack_bytes,
        shared_bytes=used.shared_bytes,
        warps=used.threads // _WARP,
        stages=0,
        tensor_memory_columns=0,
        instructions=instructions(made.image),
        operations={},
        launch=_LAUNCH,
        image_sha256=hashlib.sha256(made.image).hexdigest(),
        source=str(source),
        remarks=made.remarks,
    )
    _write(source, request.text.encode())
    _write(request.stem.with_suffix(".cubin"), made.image)
    kept = {name: value for name, value in asdict(facts).items() if name in _KEPT}
    _write(request.stem.with_suffix(".json"), json.dumps(kept).encode())
    return facts, made.image, request


def _remembered(request: _Request) -> _Known | None:
    """What was compiled before; None where it was not, or where a file is damaged."""
    image, told = (_read(request.stem.with_suffix(ending)) for ending in (".cubin", ".json"))
    source = _read(request.stem.with_suffix(".tileir"))
    if image is None or told is None or source != request.text.encode():
        return None
    try:
        facts = _facts(json.loads(told), str(request.stem.with_suffix(".tileir")))
    except (ValueError, CacheFormatError):
        return None
    return (facts, image, request) if hashlib.sha256(image).hexdigest() == facts.image_sha256 else None


def _facts(kept: Mapping[str, Any], source: str) -> StaticFacts:
    """Raises CacheFormatError for what is none."""
    if not isinstance(kept, dict) or kept.keys() != _KEPT:
        raise CacheFormatError(f"these are no facts of this version: {kept}")
    launch = LaunchFacts.from_json(kept["launch"])
    return StaticFacts(**{**kept, "launch": launch, "remarks": tuple(kept["remarks"])}, source=source)


def _read(path: Path) -> bytes | None:
    return _folder(path.parent).find(path.name, _FILE_BYTES)


def _write(path: Path, data: bytes) -> None:
    try:
        _folder(path.parent).write(path.name, data)
    except OSError as error:
        raise CacheIOError(
            f"{path} cannot be written: {error}", hints=["set TESSERA_CACHE_DIR to a folder that can be written"]
        ) from error


@lru_cache(maxsize=4)
def _folder(path: Path) -> PrivateFolder:
    """One per folder, because it warns once: machine code lies there, which runs."""
    return PrivateFolder(path)
