"""`tileiras`, the compiler of CUDA Tile IR, as a program that is run on one file."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from tessera.errors import CompileError, UnsupportedTargetError
from tessera.system.distribution import installing
from tessera.target import Target
from tessera.target.facts import TILE_ARCHITECTURES

PACKAGE: Final = "nvidia-cuda-tileiras"
LIMIT_S: Final = 600.0
"""Seconds after which a compilation is given up."""


@dataclass(frozen=True)
class Assembled:
    """Machine code, and what the compiler remarks of how it was made: a line each."""

    image: bytes
    remarks: tuple[str, ...]


def installed() -> str | None:
    """The version of tileiras; None where it is not installed."""
    try:
        return f"tileiras {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return None


def version() -> str:
    """The version of tileiras. Raises UnsupportedTargetError where it is not installed."""
    found = installed()
    if found is None:
        raise UnsupportedTargetError("the compiler of CUDA Tile IR is not installed", hints=[installing("cuda-tile")])
    return found


@cache
def program() -> Path:
    """Where tileiras lies. Raises UnsupportedTargetError where it is not installed."""
    version()
    files = metadata.files(PACKAGE) or []
    for file in files:
        if file.name == "tileiras":
            return Path(str(file.locate()))
    raise UnsupportedTargetError(f"the package {PACKAGE} holds no tileiras", hints=[installing("cuda-tile")])


def require_architecture(target: Target) -> None:
    """Raises UnsupportedTargetError for a target that tileiras does not compile for."""
    if target.arch not in TILE_ARCHITECTURES:
        raise UnsupportedTargetError(
            f"CUDA Tile IR is not compiled for {target.name} ({target.arch})",
            hints=[f"there are {', '.join(TILE_ARCHITECTURES)}", "the backend 'triton' compiles for others"],
        )


def assemble(bytecode: bytes, target: Target, limit_s: float = LIMIT_S) -> Assembled:
    """Compiles a program for a GPU, which need not be there. Raises CompileError for what tileiras refuses."""
    with tempfile.TemporaryDirectory(prefix="tessera-tile-") as folder:
        given, made = Path(folder) / "kernel.tileirbc", Path(folder) / "kernel.cubin"
        given.write_bytes(bytecode)
        command = [str(program()), str(given), "-o", str(made), "--gpu-name", target.arch, "--remarks=all"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as late:
            raise CompileError(f"tileiras gave no answer within {limit_s:.0f} s") from late
        said = done.stdout + done.stderr
        if done.returncode or not made.exists():
            words = " ".join(line.strip() for line in said.splitlines() if "error" in line)
            raise CompileError(f"tileiras ended with status {done.returncode}: {words or said.strip()[-300:]}")
        return Assembled(made.read_bytes(), remarks_in(said))


_REMARK: Final = re.compile(r"remark\[(?P<outcome>\w+)\]: (?P<text>.*)")
_DETAIL: Final = re.compile(r"= (?P<key>reason|note): (?P<text>.*)")


def remarks_in(said: str) -> tuple[str, ...]:
    """The compiler's remarks, each once, with how often: "passed: Load instruction selected (...) x 2"."""
    found: list[str] = []
    for line in said.splitlines():
        if (match := _REMARK.search(line)) is not None:
            found.append(f"{match['outcome']}: {match['text'].strip()}")
        elif found and (match := _DETAIL.search(line)) is not None:
            found[-1] += f" ({match['text'].strip()})"
    counts = {remark: found.count(remark) for remark in found}
    return tuple(remark if count == 1 else f"{remark} x {count}" for remark, count in counts.items())
