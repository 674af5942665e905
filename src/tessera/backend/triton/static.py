"""What a kernel becomes on a GPU that need not be there: registers, spills, shared memory, occupancy, instructions.

Facts are kept beside the printed source under `triton/` in the cache folder, by a hash of the source, the target and
Triton's version.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera import settings
from tessera.backend.triton.kernel import generate, parameters_of
from tessera.errors import CacheIOError, CompileError, UnsupportedTargetError
from tessera.files import write_atomically
from tessera.target import Target
from tessera.target.occupancy import Occupancy, occupancy

COMPILE_LIMIT_S = 600.0
"""Seconds after which a compilation is given up; large tiles take ptxas ten seconds and more."""


@dataclass(frozen=True)
class StaticFacts:
    """A compiled kernel: `registers` and `spill_bytes` a thread (stores and loads), `shared_bytes` a block, `warps` and
    `stages` as compiled, the number of `instructions` that matter, and where the printed `source` lies.
    """

    triton: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    stages: int
    instructions: Mapping[str, int]
    source: str

    @property
    def text(self) -> str:
        """The printed source."""
        return Path(self.source).read_text()

    def occupancy(self, target: Target) -> Occupancy:
        """How many warps a multiprocessor of `target` holds at a time."""
        assert target.gpu is not None
        return occupancy(target.gpu, self.warps, self.registers, self.shared_bytes)


_ANSWERED = {field.name for field in fields(StaticFacts)} - {"source"}


@dataclass(frozen=True)
class Candidate:
    """A kernel to look at: its Tile IR, and its parameters that are promised to be divisible by 16 (extents, strides;
    pointers always are).
    """

    module: ModuleOp
    divisible: Collection[str] = ()
    note: str = ""
    """A comment for the head of the printed source: the schedule."""


def triton_version() -> str:
    """The version of Triton. Raises UnsupportedTargetError where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        raise UnsupportedTargetError("Triton is not installed", hints=["pip install 'triton==3.6.*'"]) from None


def static_facts(candidates: Sequence[Candidate], target: Target) -> list[StaticFacts | CompileError]:
    """The facts of each kernel on `target`, or why it does not compile. Those that are not known yet are compiled in
    one process of their own.

    Raises CompileError for Tile IR that cannot be printed, and where the compiler's process dies; CacheIOError where
    the source cannot be written.
    """
    version = triton_version()
    folder = settings.current().triton_dir
    requests = [_request(candidate, target, version, folder) for candidate in candidates]
    answers = {request.facts: _remembered(request.facts) for request in requests}
    unknown = [request for request in requests if answers[request.facts] is None]
    for request, answer in zip(unknown, _compile(unknown), strict=True):
        answers[request.facts] = answer
        if "error" not in answer:  # a refusal may have had a passing cause
            _write(request.facts, json.dumps(answer))
    return [_facts(request, answers[request.facts] or {}) for request in requests]


@dataclass(frozen=True)
class _Request:
    source: Path
    facts: Path
    asked: Mapping[str, Any]


def _request(candidate: Candidate, target: Target, version: str, folder: Path) -> _Request:
    text = generate(candidate.module, target)
    if candidate.note:
        text = "".join(f"# {line}\n" for line in candidate.note.splitlines()) + text
    name, parameters, options = parameters_of(candidate.module)
    asked = {
        "function": name,
        "signature": {parameter.name: parameter.kind for parameter in parameters},
        "divisible": [p.name for p in parameters if p.kind.startswith("*") or p.name in candidate.divisible],
        "options": options,
        "arch": target.arch,
    }
    digest = hashlib.sha256(json.dumps([text, asked, version]).encode()).hexdigest()[:16]
    source = folder / f"{name}-{target.arch}-{digest}.py"
    if not source.exists():
        _write(source, text)
    return _Request(source, source.with_suffix(".json"), {**asked, "path": str(source)})


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode(), durable=False)
    except OSError as error:
        # Triton reads kernels from files: without one there is nothing to compile.
        raise CacheIOError(
            f"{path} cannot be written: {error}", hints=["set TESSERA_CACHE_DIR to a folder that can be written"]
        ) from error


def _remembered(path: Path) -> dict[str, Any] | None:
    """What the compiler answered before; None where it was not asked, or where the file is damaged."""
    try:
        answer = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) and answer.keys() == _ANSWERED else None


def _compile(requests: Sequence[_Request]) -> list[dict[str, Any]]:
    if not requests:
        return []
    names = ", ".join(request.source.name for request in requests)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tessera.backend.triton.offline"],
            input=json.dumps([request.asked for request in requests]),
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"Triton took more than {COMPILE_LIMIT_S:.0f} s for {names}") from None
    if done.returncode:
        raise CompileError(
            f"Triton's process ended with status {done.returncode} while it compiled {names}",
            hints=done.stderr.strip().splitlines()[-3:],
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _facts(request: _Request, answer: Mapping[str, Any]) -> StaticFacts | CompileError:
    if "error" in answer:
        return CompileError(f"Triton does not compile {request.source.name}: {answer['error']}")
    return StaticFacts(**answer, source=str(request.source))
