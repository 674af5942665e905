"""Finds the OpenMP library that torch has loaded, so that kernels run on torch's own pool of threads.

Two pools on the same cores are worse than one: the idle one keeps spinning for a while after each call and steals the
cores from the other. So Tessera starts no threads of its own; it calls `GOMP_parallel` of the libgomp that is already
mapped into the process. Where there is none (other platforms, builds of torch with another OpenMP), the shares of a
step run one after the other, and `find().reason` says why.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GOMP_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@dataclass(frozen=True, slots=True)
class OpenMP:
    """`path` of the library, or None with the `reason`. A library named here is loaded, and linked code finds its
    names.
    """

    path: str | None
    reason: str

    @property
    def available(self) -> bool:
        return self.path is not None


@cache
def find() -> OpenMP:
    """The OpenMP library of this process. The first call loads it (torch's own, when torch is not yet imported)."""
    return loaded(_mapped_libraries() or _torch_libraries())


def loaded(candidates: Sequence[str]) -> OpenMP:
    """The first of some libraries that has what code calls, loaded; where none has, why."""
    if not candidates:
        return OpenMP(None, "no libgomp is loaded in this process and torch brings none")
    failures = []
    for path in candidates:
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            failures.append(f"{path}: {error}")
            continue
        missing = [name for name in GOMP_SYMBOLS if not hasattr(library, name)]
        if missing:
            failures.append(f"{path} lacks {', '.join(missing)}")
            continue
        return OpenMP(path, f"GOMP_parallel of {path}")
    return OpenMP(None, "; ".join(failures))


def _mapped_libraries() -> list[str]:
    """Paths of the libgomp files mapped into this process, torch's own first; empty where /proc is not Linux's."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}
    return sorted((path for path in paths if Path(path).exists()), key=lambda path: ("torch" not in path, path))


def _torch_libraries() -> list[str]:
    """The libgomp that comes with torch, found without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    return [
        str(path) for folder in (root / "lib", root.parent / "torch.libs") for path in sorted(folder.glob("libgomp*"))
    ]
