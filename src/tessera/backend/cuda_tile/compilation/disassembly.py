"""Instructions that matter in the machine code of NVIDIA's GPUs, counted by `nvdisasm`, which Triton's wheel brings."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

PATTERNS: Final = {
    "wgmma": r"\b[HQI]GMMA\b",
    "tcgen05.mma": r"\bUTC[A-Z]*MMA\b",
    "mma.sync": r"\b[HIDQ]MMA\b|\bOMMA\b",
    "TMA load": r"\bUTMALDG\b",
    "TMA store": r"\bUTMASTG\b",
    "cp.async": r"\bLDGSTS\b",
    "setmaxnreg": r"\bUSETMAXREG\b",
    "local store": r"\bSTL\b",
}
"""Name -> what it is in SASS ("CUDA Binary Utilities", instruction set reference)."""


@cache
def _program() -> Path | None:
    try:
        files = metadata.files("triton") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == "nvdisasm"), None)


def instructions(image: bytes) -> dict[str, int]:
    """How many there are of each that occurs; none where there is no disassembler."""
    program = _program()
    if program is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="tessera-tile-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run([str(program), str(path)], capture_output=True, text=True, check=False)
    return {} if done.returncode else counted(done.stdout)


def counted(code: str) -> dict[str, int]:
    """How many instructions of each kind a listing has, without those that it has none of."""
    counts = {name: len(re.findall(pattern, code)) for name, pattern in PATTERNS.items()}
    return {name: count for name, count in counts.items() if count}
