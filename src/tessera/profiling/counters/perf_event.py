"""`perf_event_open(2)` by ctypes: counters of the processor and the kernel, for a thread, a process or a processor.

Source: Linux `include/uapi/linux/perf_event.h` (PERF_ATTR_SIZE_VER5, Linux 4.1 and later).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HARDWARE: Final = 0
SOFTWARE: Final = 1
CACHE: Final = 3

_SYSCALL: Final = {"x86_64": 298, "aarch64": 241}
_CLOSE_ON_EXEC: Final = 8
_IOC_ENABLE: Final = 0x2400
_ENABLED, _RUNNING, _GROUP = 1, 2, 8
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1, 2, 32, 64
PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")


class EventAttributes(ctypes.Structure):
    """`struct perf_event_attr`; the bit field after `read_format` is `flags`."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
    )


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """What is counted: a type of `perf_event.h` or of a PMU in /sys, and its configuration.

    `kernel` events happen in the kernel, as context switches do: they cannot be counted in user mode alone.
    """

    name: str
    type: int
    config: int
    kernel: bool = False


def _cache(cache: int, operation: int, result: int) -> int:
    return cache | operation << 8 | result << 16


HARDWARE_EVENTS: Final = (
    PerfEvent("cycles", HARDWARE, 0),
    PerfEvent("instructions", HARDWARE, 1),
    PerfEvent("cache_references", HARDWARE, 2),
    PerfEvent("cache_misses", HARDWARE, 3),
    PerfEvent("branches", HARDWARE, 4),
    PerfEvent("branch_misses", HARDWARE, 5),
    PerfEvent("stalled_cycles_frontend", HARDWARE, 7),
    PerfEvent("stalled_cycles_backend", HARDWARE, 8),
    PerfEvent("llc_read_misses", CACHE, _cache(2, 0, 1)),
    PerfEvent("llc_write_misses", CACHE, _cache(2, 1, 1)),
)
SOFTWARE_EVENTS: Final = (
    PerfEvent("task_clock", SOFTWARE, 1),
    PerfEvent("page_faults", SOFTWARE, 2),
    PerfEvent("context_switches", SOFTWARE, 3, kernel=True),
    PerfEvent("migrations", SOFTWARE, 4, kernel=True),
)


def open_event(
    event: PerfEvent, *, pid: int = 0, cpu: int = -1, group: int = -1, inherit: bool = False, disabled: bool = False
) -> int:
    """The descriptor of a counter that runs from now on, unless `disabled`; a member of a group runs with its leader
    `group`.

    `pid` is a thread's number, 0 the calling thread, -1 all that run on `cpu`. An inheriting counter counts in threads
    started later too, and cannot be read as a group. Raises OSError with the errno of the call.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = EventAttributes(type=event.type, size=ctypes.sizeof(EventAttributes), config=event.config)
    attributes.read_format = _ENABLED | _RUNNING | (0 if inherit else _GROUP)
    attributes.flags = (_INHERIT if inherit else 0) | (_DISABLED if disabled else 0)
    if not event.kernel and pid != -1:
        attributes.flags |= _NO_KERNEL | _NO_HYPERVISOR
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.syscall(
        ctypes.c_long(number),
        ctypes.byref(attributes),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(group),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def scaled(value: int, enabled: int, running: int) -> float:
    """A count, extrapolated where the counter had to share the hardware: `value * enabled / running`; NaN where it
    never ran.
    """
    if running == 0:
        return math.nan if enabled else 0.0
    return value * enabled / running


class EventGroup:
    """Events of one thread that are counted at the same time, so that their ratios hold. Close it, or use `with`.

    Raises OSError where one of them is refused. More events than the processor has counters never run: NaN.
    """

    def __init__(self, events: Sequence[PerfEvent], thread: int = 0) -> None:
        self.events = tuple(events)
        self._descriptors: list[int] = []
        self._format = struct.Struct(f"=3Q{len(self.events)}Q")
        try:
            for event in self.events:
                leader = self._descriptors[0] if self._descriptors else -1
                self._descriptors.append(open_event(event, pid=thread, group=leader, disabled=leader < 0))
            # Members of another kind than the leader count nothing where they join a group that runs (Linux 6.18).
            fcntl.ioctl(self._descriptors[0], _IOC_ENABLE, 0)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> EventGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(self) -> list[float]:
        """Counts since it was opened, in order of `events`, by one system call."""
        _, enabled, running, *values = self._format.unpack(os.read(self._descriptors[0], self._format.size))
        return [scaled(value, enabled, running) for value in values]

    def close(self) -> None:
        """Ends counting."""
        while self._descriptors:
            os.close(self._descriptors.pop())


class ProcessEvents:
    """Events of all threads of a process, those started later included, each for itself: the kernel lets them share the
    hardware, and counts are extrapolated. Close it, or use `with`. Raises OSError where one is refused.
    """

    _single: Final = struct.Struct("=3Q")

    def __init__(self, events: Sequence[PerfEvent], pid: int) -> None:
        self.events = tuple(events)
        self._descriptors: dict[int, list[int]] = {}
        try:
            # Threads may start while their siblings are being opened; those that start later are inherited.
            while new := _threads(pid) - self._descriptors.keys():
                for thread in new:
                    self._open(thread)
        except OSError:
            self.close()
            raise
        if not any(self._descriptors.values()):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def __enter__(self) -> ProcessEvents:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self, thread: int) -> None:
        opened = self._descriptors.setdefault(thread, [])
        for event in self.events:
            try:
                opened.append(open_event(event, pid=thread, inherit=True))
            except ProcessLookupError:
                while opened:
                    os.close(opened.pop())
                return

    def read(self) -> list[float]:
        """Counts since it was opened, in order of `events`: one system call for each event and thread."""
        totals = [0.0] * len(self.events)
        for descriptors in self._descriptors.values():
            for index, descriptor in enumerate(descriptors):
                totals[index] += scaled(*self._single.unpack(os.read(descriptor, self._single.size)))
        return totals

    def close(self) -> None:
        """Ends counting."""
        for descriptors in self._descriptors.values():
            while descriptors:
                os.close(descriptors.pop())


def _threads(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/task")}


def refusal(event: PerfEvent, pid: int) -> tuple[str, str] | None:
    """Why a process' event cannot be counted, and what to do; None where it can."""
    try:
        os.close(open_event(event, pid=pid, inherit=True))
    except OSError as error:
        return explain(error)
    return None


def explain(error: OSError, paranoid: Path = PARANOID) -> tuple[str, str]:
    """What a refusal of `perf_event_open` means, and its remedy."""
    if error.errno in (errno.EACCES, errno.EPERM):
        level = paranoid.read_text().strip() if paranoid.exists() else "unknown"
        return (
            f"perf_event_open: {error.strerror} (kernel.perf_event_paranoid is {level})",
            "sudo sysctl kernel.perf_event_paranoid=1 (0 for whole processors), or give the program CAP_PERFMON",
        )
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
        return (
            "the processor shows no such counter",
            "virtual machines hide them: have the hypervisor pass the PMU through, or measure on the host",
        )
    if error.errno == errno.ENOSYS:
        return (
            "this system has no perf_event_open",
            "use a kernel with CONFIG_PERF_EVENTS, outside sandboxes",
        )
    if error.errno == errno.ESRCH:
        return "the process has ended", ""
    if error.errno == errno.EMFILE:
        return "too many open files", "raise `ulimit -n`"
    return f"perf_event_open: {error.strerror}", ""


def available(events: Iterable[PerfEvent], pid: int) -> list[PerfEvent]:
    """Those of the events that can be counted."""
    return [event for event in events if refusal(event, pid) is None]
