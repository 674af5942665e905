"""The CPU that this process runs on: features from LLVM, names from /proc/cpuinfo, caches and topology from /sys."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tessera.system import forks
from tessera.target.facts import MemoryLevel, Target, vector_facts

_DEFAULT_LINE_BYTES = 64
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The number of the system call on x86-64, and its arguments (Linux, Documentation/arch/x86/xstate.rst)."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@cache
def detect() -> Target:
    """The CPU of this machine, without ceilings. Works on unsupported CPUs too: see `Target.unsupported_reason`.

    The first call imports llvmlite. The set of processors is the one this process may use at that call.
    """
    with forks.importing:  # and LLVM, which locks itself as well
        import llvmlite.binding as llvm

        features = frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
        arch = llvm.get_host_cpu_name()
    if "amx-tile" in features and amx_refusal() is not None:
        features = frozenset(name for name in features if not name.startswith("amx-"))
    return describe(
        arch=arch,
        features=features,
        processors=_usable_processors(),
        cpuinfo=_read(Path("/proc/cpuinfo")),
        meminfo=_read(Path("/proc/meminfo")),
        system=Path("/sys/devices/system/cpu"),
        machine=platform.machine(),
    )


_OTHER_NAMES = {
    "64bit": "lm",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
}
"""Features of x86-64 by LLVM's names, where Linux's are others (arch/x86/include/asm/cpufeatures.h)."""
_NO_INSTRUCTIONS = frozenset(("shstk",))
"""Features by LLVM's names that no kernel has an instruction of."""


def lacking(features: Iterable[str]) -> list[str]:
    """Which of these features, by LLVM's names, this CPU has not. LLVM is asked only for what Linux does not list."""
    flags = _flags()
    doubtful = [
        name
        for name in sorted(set(features) - _NO_INSTRUCTIONS)
        if _OTHER_NAMES.get(name) not in flags and _plain(name) not in flags
    ]
    return [name for name in doubtful if name not in detect().features] if doubtful else []


@cache
def _flags() -> frozenset[str]:
    """What Linux lists for the first processor of an x86-64, as it is written and without marks."""
    line = re.search(r"^flags\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    if line is None or platform.machine() != "x86_64":
        return frozenset()
    return frozenset(form for flag in line[1].split() for form in (flag, _plain(flag)))


def _plain(name: str) -> str:
    """A name without the marks in which LLVM's names ("sse4.1", "amx-tile") and Linux's ("sse4_1") differ."""
    return re.sub("[._-]", "", name)


@cache
def amx_refusal() -> str | None:
    """Why this process may not use a matrix unit that the CPU has, in a few words; None once it may.

    Linux keeps the unit's 8 KiB of registers for processes that ask for them only. Children inherit the permission
    where they are forked, not where another program begins.
    """
    if not hasattr(os, "uname") or os.uname().sysname != "Linux":
        return "only Linux is known to lend the tile registers"
    if ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return None
    return f"Linux does not lend the tile registers: {os.strerror(ctypes.get_errno())}"


def describe(
    arch: str,
    features: frozenset[str],
    processors: frozenset[int],
    cpuinfo: str,
    meminfo: str,
    system: Path,
    machine: str,
) -> Target:
    """A target of the texts and the /sys folder that describe a CPU; what they leave out is absent from the result.

    `machine` is the instruction set as `uname -m` says it.
    """
    if machine in ("aarch64", "arm64"):
        features |= {"neon"}  # part of every 64-bit Arm CPU; older LLVMs do not list it
    bits, registers = vector_facts(features)
    cores = _cores(processors, system)
    return Target(
        kind="cpu",
        arch=arch,
        name=cpu_name(cpuinfo) or arch,
        features=features,
        vector_bits=bits,
        vector_registers=registers,
        cores=len(cores),
        processors=len(processors),
        memory=(*_caches(min(processors), cores, system), _main_memory(meminfo, len(cores))),
        machine=machine,
    )


@cache
def machine_name() -> str:
    """The name of this machine's CPU, for which LLVM is not asked; "" where the system tells none."""
    return cpu_name(_read(Path("/proc/cpuinfo")))


def cpu_name(cpuinfo: str) -> str:
    """The model name in the text of /proc/cpuinfo, with family and model where the name leaves the generation open."""
    first = cpuinfo.split("\n\n", 1)[0]
    entries = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = entries.get("model name", "")
    # Virtual machines shorten "AMD EPYC 9654 96-Core Processor" to "AMD EPYC".
    if name and not re.search(r"\d", name) and "cpu family" in entries:
        return f"{name} (family {entries['cpu family']}, model {entries.get('model', '?')})"
    return name


def parse_list(text: str) -> frozenset[int]:
    """The processors of a list as /sys writes it: "0-3,8" is {0, 1, 2, 3, 8}."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(n for first, _, last in ranges for n in range(int(first), int(last or first) + 1))


def _usable_processors() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _cores(processors: Iterable[int], system: Path) -> frozenset[frozenset[int]]:
    """The usable physical cores, each as the set of all its logical processors."""
    siblings = {n: _read(system / f"cpu{n}" / "topology" / "thread_siblings_list") for n in processors}
    return frozenset(parse_list(text) or frozenset((n,)) for n, text in siblings.items())


def _caches(processor: int, cores: frozenset[frozenset[int]], system: Path) -> tuple[MemoryLevel, ...]:
    """The data caches above `processor`, nearest first."""
    levels = []
    for folder in sorted((system / f"cpu{processor}" / "cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(folder / "size").strip())
        if size is None or _read(folder / "type").strip() == "Instruction":
            continue
        sharers = parse_list(_read(folder / "shared_cpu_list"))
        levels.append(
            MemoryLevel(
                name=f"L{_read(folder / 'level').strip()}",
                size_bytes=int(size[1]) * _UNITS[size[2]],
                line_bytes=int(_read(folder / "coherency_line_size").strip() or _DEFAULT_LINE_BYTES),
                shared_by=max(1, sum(1 for core in cores if core & sharers)),
            )
        )
    return tuple(sorted(levels, key=lambda level: level.name))


def _main_memory(meminfo: str, cores: int) -> MemoryLevel:
    total = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return MemoryLevel("DRAM", int(total[1]) * 2**10 if total else 0, _DEFAULT_LINE_BYTES, cores)


def _read(path: Path) -> str:
    """The text of a file of /proc or /sys, "" where the system has no such file or hides it."""
    try:
        return path.read_text()
    except OSError:
        return ""
