"""Memory of one process, shared pages counted in proportion: `/proc/<pid>/smaps_rollup` (Linux 4.14 and later)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters.files import PolledFile, labelled, why_unreadable
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject

_MEMORY: Final = (Field("pss_bytes", "B", scale=1024), Field("swap_bytes", "B", scale=1024))


class MemorySampler:
    """Memory with shared pages counted in proportion, and what lies in swap; the kernel walks all page tables."""

    fields: Sequence[Field] = _MEMORY
    min_interval_ms = 1000.0

    def __init__(self, folder: Path) -> None:
        self._file = PolledFile(folder / "smaps_rollup")

    def read(self) -> Sequence[float]:
        content = self._file.read()
        return labelled(content, b"Pss:"), labelled(content, b"Swap:")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class MemoryBackend:
    """Proportional and swapped memory of the subject. Only for "memory": reading costs milliseconds."""

    proc: Path = Path("/proc")
    name: str = "memory"
    activities: frozenset[str] = frozenset({"memory"})

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        path = self.proc / str(subject.pid) / "smaps_rollup"
        if _openable(path):
            return {field.name: Capability(field.unit) for field in _MEMORY}
        why, remedy = why_unreadable(path), "run as the user of the process, or with CAP_SYS_PTRACE"
        return {field.name: Capability(field.unit, why, remedy) for field in _MEMORY}

    def open(self, subject: Subject) -> Sequence[Sampler]:
        folder = self.proc / str(subject.pid)
        return [MemorySampler(folder)] if _openable(folder / "smaps_rollup") else []


def _openable(path: Path) -> bool:
    """Whether the file may be read, which the kernel decides when it is opened: reading it takes milliseconds."""
    opened = PolledFile.try_open(path)
    if opened is not None:
        opened.close()
    return opened is not None


BACKEND = MemoryBackend()
