"""What machine a result belongs to."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import tessera

_PACKAGES = ("torch", "llvmlite", "xdsl", "numpy")


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's fields of ``/proc/cpuinfo``; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_flags() -> frozenset[str]:
    """The CPU's feature flags as Linux names them (``avx512f``, ``avx512_bf16``, ...)."""
    return frozenset(_cpuinfo().get("flags", "").split())


def cpu_name() -> str:
    """The CPU's name with what tells its generation: virtual machines often shorten the model name."""
    info = _cpuinfo()
    if "model name" not in info:
        return platform.processor() or platform.machine()
    return f"{info['model name']} (family {info.get('cpu family', '?')}, model {info.get('model', '?')})"


def cpu_slug() -> str:
    """`cpu_name` as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of Python, the operating system and the packages results depend on; absent packages are left out."""
    result = {"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}"}
    result["tessera"] = tessera.__version__
    for name in _PACKAGES:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result
