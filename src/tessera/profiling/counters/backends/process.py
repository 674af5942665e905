"""What the system says of one process: `/proc/<pid>`. Sources: proc(5); Linux `Documentation/filesystems/proc.rst`."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.profiling.counters.files import PolledFile, labelled, readable, why_unreadable
from tessera.profiling.counters.interfaces import Capability, Field, Polled, Sampler, Subject

PROCESS: Final = "process"
_SLOW_MS: Final = 500.0
"""Between readings of what costs some microseconds and says little of a shorter time."""

_USE: Final = (
    Field("cpu_pct", "%", cumulative=True, scale=100e-9),
    Field("rss_bytes", "B", scale=os.sysconf("SC_PAGE_SIZE")),
)
_STAT: Final = (
    Field("minor_faults", "1/s", cumulative=True),
    Field("major_faults", "1/s", cumulative=True),
    Field("threads", ""),
)
_SWITCHES: Final = (
    Field("voluntary_switches", "1/s", cumulative=True),
    Field("involuntary_switches", "1/s", cumulative=True),
)
_IO: Final = (Field("disk_read", "B/s", cumulative=True), Field("disk_write", "B/s", cumulative=True))


class UseSampler:
    """Processor time of all threads (100 % is one processor) by the process' clock in nanoseconds, resident memory."""

    fields: Sequence[Field] = _USE
    min_interval_ms = 0.0

    def __init__(self, pid: int, folder: Path) -> None:
        self._file = PolledFile(folder / "statm", 64)
        self._clock = ~pid << 3 | 2  # what clock_getcpuclockid(3) gives
        own = Polled(self._clock, is_clock=True), Polled(self._file.descriptor, place=1)
        # Of another process, no number says that it has ended while nobody has asked how.
        self.polled: Sequence[Polled] = own if pid == os.getpid() else ()

    def read(self) -> Sequence[float]:
        pages = int(self._file.read().split(None, 2)[1])
        if not pages:  # it has ended, and nobody has asked how
            raise ProcessLookupError("the process has ended")
        return time.clock_gettime_ns(self._clock), pages

    def close(self) -> None:
        self._file.close()


class StatSampler:
    """Page faults and threads."""

    fields: Sequence[Field] = _STAT
    min_interval_ms = _SLOW_MS

    def __init__(self, folder: Path) -> None:
        self._file = PolledFile(folder / "stat")

    def read(self) -> Sequence[float]:
        # The command's name may hold blanks and brackets: fields are counted from its last bracket on.
        words = self._file.read().rpartition(b")")[2].split()
        if len(words) < 22:
            raise ProcessLookupError("the process has ended")
        return int(words[7]), int(words[9]), int(words[17])

    def close(self) -> None:
        self._file.close()


class OwnSwitchesSampler:
    """Context switches of all threads of this process, those that have ended included."""

    fields: Sequence[Field] = _SWITCHES
    min_interval_ms = _SLOW_MS

    def read(self) -> Sequence[float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_nvcsw, usage.ru_nivcsw

    def close(self) -> None:
        """Holds nothing."""


class SwitchesSampler:
    """Context switches of the threads of another process; of a thread that ends, those until its last reading."""

    fields: Sequence[Field] = _SWITCHES
    min_interval_ms = _SLOW_MS

    def __init__(self, folder: Path) -> None:
        self._tasks = folder / "task"
        self._last: dict[str, tuple[int, int]] = {}
        self._ended = [0, 0]

    def read(self) -> Sequence[float]:
        now = {}
        for thread in os.listdir(self._tasks):
            try:
                status = (self._tasks / thread / "status").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            now[thread] = (
                labelled(status, b"voluntary_ctxt_switches:"),
                labelled(status, b"nonvoluntary_ctxt_switches:"),
            )
        for thread in self._last.keys() - now.keys():
            for kind in (0, 1):
                self._ended[kind] += self._last[thread][kind]
        self._last = now
        return [self._ended[kind] + sum(each[kind] for each in now.values()) for kind in (0, 1)]

    def close(self) -> None:
        """Holds nothing."""


class IoSampler:
    """Bytes that the process made disks read and write, the page cache left out."""

    fields: Sequence[Field] = _IO
    min_interval_ms = _SLOW_MS

    def __init__(self, folder: Path) -> None:
        self._file = PolledFile(folder / "io")

    def read(self) -> Sequence[float]:
        content = self._file.read()
        return labelled(content, b"read_bytes:"), labelled(content, b"write_bytes:")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class ProcessBackend:
    """Processor time, resident memory, faults, switches and disk traffic of the subject."""

    proc: Path = Path("/proc")
    name: str = PROCESS
    activities: frozenset[str] = frozenset({"cpu", "memory"})

    def _files(self) -> Mapping[str, tuple[Sequence[Field], str]]:
        """What each file gives, and what may keep one from reading it."""
        return {
            "statm": (_USE, "the process must run"),
            "stat": (_STAT, "the process must run"),
            "task": (_SWITCHES, "the process must run"),
            "io": (_IO, "run as the user of the process, or with CAP_SYS_PTRACE"),
        }

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        found: dict[str, Capability] = {}
        folder = self.proc / str(subject.pid)
        for name, (fields, remedy) in self._files().items():
            reason = None if readable(folder / name) else why_unreadable(folder / name)
            for each in fields:
                found[each.name] = Capability(each.unit, reason, remedy if reason else "")
        return found

    def open(self, subject: Subject) -> Sequence[Sampler]:
        folder = self.proc / str(subject.pid)
        samplers: list[Sampler] = [UseSampler(subject.pid, folder)] if readable(folder / "statm") else []
        for name, make in (("stat", StatSampler), ("io", IoSampler)):
            if readable(folder / name):
                samplers.append(make(folder))
        if subject.own:
            samplers.append(OwnSwitchesSampler())
        elif readable(folder / "task"):
            samplers.append(SwitchesSampler(folder))
        return samplers


BACKEND = ProcessBackend()
