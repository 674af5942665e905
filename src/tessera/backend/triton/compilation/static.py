"""What a kernel becomes on a GPU that need not be there: registers, spills, shared memory, occupancy, instructions, and
its machine code.

Facts (`.json`) and machine code (`.cubin`, `.hsaco`) are kept beside the printed source (`.py`) under `triton/` in the
cache folder, by a hash of the source, the target and Triton's version. What is missing or damaged is compiled again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera import settings
from tessera.backend.gpu_objects import GpuKernelObject, GpuParameter, LaunchFacts, StaticFacts
from tessera.backend.triton.compilation.faithfulness import CompilerRequests, ignored
from tessera.backend.triton.compilation.offline import AMD_INSTRUCTIONS, NVIDIA_INSTRUCTIONS, TTGIR_OPERATIONS
from tessera.backend.triton.printing.float8 import for_target
from tessera.backend.triton.printing.kernel import PrintedParameter, generate, parameters_of
from tessera.errors import (
    CacheFormatError,
    CacheIOError,
    CompileError,
    ScheduleIgnoredError,
    UnsupportedTargetError,
)
from tessera.ir.tile.operations import find_kernel
from tessera.system.distribution import installing
from tessera.system.priority import current_niceness
from tessera.system.private import PrivateFolder
from tessera.system.sources import resource
from tessera.target import Target

PROGRAM = resource("backend/triton/compilation/offline.py")
"""What compiles."""
COMPILE_LIMIT_S = 600.0
"""Seconds after which a compilation is given up; large tiles take ptxas ten seconds and more."""
_EACH_S = 60.0
"""Seconds for every further kernel of the same process."""
_PROCESSORS_EACH = 2
"""Processors for each compiling process: it and ptxas take turns."""
_FILE_BYTES = 1 << 27
"""Most bytes of one source, of its facts, or of its machine code."""

_ANSWERED = {field.name for field in fields(StaticFacts)} - {"source"}


def triton_version() -> str:
    """The version of Triton. Raises UnsupportedTargetError where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        raise UnsupportedTargetError("Triton is not installed", hints=[installing("triton")]) from None


def static_facts(modules: Sequence[ModuleOp], target: Target) -> list[StaticFacts | CompileError]:
    """The facts of each kernel on `target`, or why it does not compile (ScheduleIgnoredError: to what it asks for); a
    compiler that crashes is the problem of that kernel only. Those that are not known yet are compiled in processes of
    their own.

    Raises CompileError for Tile IR that cannot be printed; CacheIOError where the source cannot be written.
    """
    return [facts for _, facts in _answers(_requests(modules, target), images=False)]


def kernel_objects(modules: Sequence[ModuleOp], target: Target) -> list[GpuKernelObject | CompileError]:
    """Each kernel compiled for `target`, ready to be launched on such a GPU, or why it does not compile.

    Found on disk or compiled in processes of their own. Raises what `static_facts` raises, and CacheIOError where
    machine code that was just written cannot be read.
    """
    return [
        facts if isinstance(facts, CompileError) else _kernel_object(request, facts, target)
        for request, facts in _answers(_requests(modules, target), images=True)
    ]


@dataclass(frozen=True)
class _Request:
    """A kernel to ask the compiler about: files for its source, facts and machine code, and what is asked."""

    source: Path
    text: str
    facts: Path
    image: Path
    parameters: tuple[GpuParameter, ...]
    wishes: CompilerRequests
    asked: Mapping[str, Any]


def _requests(modules: Sequence[ModuleOp], target: Target) -> list[_Request]:
    version, folder = triton_version(), settings.current().triton_dir
    return [_request(module, target, version, folder) for module in modules]


def _request(given: ModuleOp, target: Target, version: str, folder: Path) -> _Request:
    module, kernel = for_target(given, target), find_kernel(given)
    text = generate(module, target)
    if kernel.note is not None:
        text = "".join(f"# {line}\n" for line in kernel.note.data.splitlines()) + text
    numbered, printed, options = parameters_of(module)
    name = _unnumbered(numbered)
    text = re.sub(rf"\b{re.escape(numbered)}\b", name, text)
    parameters = gpu_parameters(printed)
    wishes = CompilerRequests.of(kernel)
    asked = {
        "function": name,
        "signature": {parameter.name: parameter.kind for parameter in parameters},
        "divisors": {parameter.name: parameter.divisor for parameter in parameters if parameter.divisor > 1},
        "options": options,
        "arch": target.arch,
    }
    looked_for = [*NVIDIA_INSTRUCTIONS, *AMD_INSTRUCTIONS, *TTGIR_OPERATIONS]
    digest = hashlib.sha256(json.dumps([text, asked, version, looked_for]).encode()).hexdigest()[:16]
    source = folder / f"{name}-{target.arch}-{digest}.py"
    if _read(source) != text.encode():
        _write(source, text.encode())
    image = source.with_suffix(".hsaco" if target.arch.startswith("gfx") else ".cubin")
    asked |= {"path": str(source), "text": text}
    return _Request(source, text, source.with_suffix(".json"), image, parameters, wishes, asked)


def _unnumbered(name: str) -> str:
    """A kernel's name without its number in the program: there are as many kernels to compile as there is code.

    A chain of 1000 equal products took 55 s to compile on an H100 where each had a name of its own.
    """
    return re.sub(r"_\d+(?=_|$)", "", name)


def _answers(requests: Sequence[_Request], images: bool) -> list[tuple[_Request, StaticFacts | CompileError]]:
    """Each request with what is known about it, `images` with sound machine code on disk, or compiled now."""
    found: dict[Path, StaticFacts | CompileError | None] = {
        request.source: _remembered(request, images) for request in requests
    }
    unknown = {request.source: request for request in requests if found[request.source] is None}
    for request, answer in zip(unknown.values(), _compile(list(unknown.values())), strict=True):
        if "error" in answer:  # not remembered: a refusal may have had a passing cause
            found[request.source] = CompileError(f"Triton does not compile {request.source.name}: {answer['error']}")
            continue
        _write(request.image, base64.b64decode(answer.pop("image")))
        facts = _facts(answer, request)
        found[request.source] = facts
        kept = {name: value for name, value in asdict(facts).items() if name in _ANSWERED}
        _write(request.facts, json.dumps(kept).encode())
    return [(request, _heeded(request, known)) for request in requests if (known := found[request.source]) is not None]


def _heeded(request: _Request, facts: StaticFacts | CompileError) -> StaticFacts | CompileError:
    """The facts of a kernel that became what was asked for, else the error that says what did not."""
    dropped = [] if isinstance(facts, CompileError) else ignored(request.wishes, facts)
    if not dropped:
        return facts
    return ScheduleIgnoredError(
        f"Triton compiles {request.source.name} to something else than asked for: {'; '.join(dropped)}",
        hints=["ask for what this GPU and this version of Triton have"],
    )


def _kernel_object(request: _Request, facts: StaticFacts, target: Target) -> GpuKernelObject:
    assert target.gpu is not None
    image = _image(request, facts)
    if image is None:
        raise CacheIOError(
            f"{request.image} cannot be read back", hints=["set TESSERA_CACHE_DIR to a folder that can be written"]
        )
    return GpuKernelObject(
        image=image,
        entry=request.asked["function"],
        source=request.text,
        arch=target.arch,
        threads=facts.warps * target.gpu.warp_size,
        shared_bytes=facts.shared_bytes,
        parameters=request.parameters,
        launch=facts.launch,
        compiler=facts.compiler,
        registers=facts.registers,
        spill_bytes=facts.spill_bytes,
    )


def _image(request: _Request, facts: StaticFacts) -> bytes | None:
    """The machine code on disk; None where there is none, or another than was compiled."""
    image = _read(request.image)
    return image if image is not None and hashlib.sha256(image).hexdigest() == facts.image_sha256 else None


def _read(path: Path) -> bytes | None:
    return _folder(path.parent).find(path.name, _FILE_BYTES)


@lru_cache(maxsize=4)
def _folder(path: Path) -> PrivateFolder:
    """One per folder, because it warns once: machine code and sources lie there, which run."""
    return PrivateFolder(path)


def gpu_parameters(printed: Sequence[PrintedParameter]) -> tuple[GpuParameter, ...]:
    """The parameters of a printed kernel as its object has them."""
    return tuple([GpuParameter(p.name, p.kind, p.argument, p.role, p.dim, p.order, p.divisor) for p in printed])


def _write(path: Path, data: bytes) -> None:
    try:
        _folder(path.parent).write(path.name, data)
    except OSError as error:
        # Tracebacks, profilers and the text of `facts` read the source there.
        raise CacheIOError(
            f"{path} cannot be written: {error}", hints=["set TESSERA_CACHE_DIR to a folder that can be written"]
        ) from error


def _remembered(request: _Request, images: bool) -> StaticFacts | None:
    """What the compiler answered before; None where it was not asked, or where a file is damaged."""
    try:
        answer = json.loads(_read(request.facts) or b"")
    except ValueError:
        return None
    if not isinstance(answer, dict) or answer.keys() != _ANSWERED:
        return None
    try:
        facts = _facts(answer, request)
    except CacheFormatError:
        return None
    return facts if not images or _image(request, facts) is not None else None


def _facts(answer: Mapping[str, Any], request: _Request) -> StaticFacts:
    """Raises CacheFormatError for an answer that is none."""
    launch, remarks = LaunchFacts.from_json(answer["launch"]), tuple(answer["remarks"])
    return StaticFacts(**{**answer, "launch": launch, "remarks": remarks}, source=str(request.source))


def _compile(requests: Sequence[_Request]) -> list[dict[str, Any]]:
    """The compiler's answer to each request, in order: by several processes where there are processors for them, by one
    of low priority beside a program that is tuned while it runs.
    """
    if not requests:
        return []
    niceness = current_niceness()
    most = 1 if niceness else (os.cpu_count() or 1) // _PROCESSORS_EACH
    groups = max(min(len(requests), most), 1)
    if groups == 1:  # without a thread more: a program that ends meanwhile would refuse one
        return _compile_share(requests, niceness)
    shares = [requests[group::groups] for group in range(groups)]
    with ThreadPoolExecutor(groups) as pool:
        answered = [iter(answers) for answers in pool.map(_compile_share, shares, [niceness] * groups)]
    return [next(answered[number % groups]) for number in range(len(requests))]


def _program() -> Sequence[str]:
    """The program that compiles, as Python takes it: by its path, or by its text where it lies in an archive."""
    path = Path(str(PROGRAM))
    return [str(path)] if path.is_file() else ["-c", PROGRAM.read_text()]


def _compile_share(requests: Sequence[_Request], niceness: int) -> list[dict[str, Any]]:
    """The answers of one process of some niceness; where it dies or hangs, each request gets a process of its own."""
    limit_s = COMPILE_LIMIT_S + _EACH_S * (len(requests) - 1)
    try:
        done = subprocess.run(
            [sys.executable, "-P", *_program(), str(niceness)],
            input=json.dumps([request.asked for request in requests]),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"no answer within {limit_s:.0f} s"
    else:
        if not done.returncode:
            answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
            return answers
        words = " ".join(done.stderr.strip().splitlines()[-3:])
        problem = f"its process ended with status {done.returncode}: {words}"
    if len(requests) == 1:
        return [{"error": problem}]
    return [answer for request in requests for answer in _compile_share([request], niceness)]
