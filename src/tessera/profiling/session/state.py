"""What a session is, whoever begins and ends it: its options, what it has recorded so far, whether it is on."""

from __future__ import annotations

import os

from tessera.profiling.recording.callers import Callers
from tessera.profiling.recording.recording import Recording
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.spill import Spill
from tessera.profiling.session.steps import Phase


class SessionState:
    """A session's options and recording, and how many of its kernels have records."""

    def __init__(self, options: SessionOptions | None = None, *, observer: bool = False) -> None:
        self.options = options or SessionOptions()
        self.recording = Recording(record_shapes=self.options.record_shapes, only_totals=self.options.mode == "summary")
        """What it has recorded so far."""
        self.recording.about = self.options.about()
        self.recording.callers = Callers() if self.options.with_stack else None
        self.observer = observer
        self.times_devices = False
        self.activities = tuple(self.options.activities)
        self.steps = 0
        """Calls of `step` so far."""
        self.spill: Spill | None = None
        """What is on disk already, while the session is on."""

    @property
    def start_ns(self) -> int:
        """When it began, in nanoseconds of `time.monotonic_ns`; 0 before."""
        return self.recording.start_ns

    @property
    def end_ns(self) -> int | None:
        """When it ended, None before."""
        return self.recording.end_ns

    @property
    def launched(self) -> int:
        """Kernels that ran."""
        return self.recording.launched

    @property
    def recorded(self) -> int:
        """Kernels with a record."""
        return self.recording.recorded

    @property
    def dropped(self) -> int:
        """Kernels that ran and have no record; `launched == recorded + dropped`."""
        return self.recording.dropped

    def dropped_reasons(self) -> dict[str, int]:
        """Why kernels have no record, and how many."""
        return self.recording.dropped_reasons()

    @property
    def unmeasured(self) -> dict[str, int]:
        """Kernels that nobody timed, by their device; some of those `dropped`."""
        return self.recording.unmeasured

    @property
    def capability(self) -> dict[str, str]:
        """Why activities, and columns of the trace, are not recorded."""
        return self.recording.capability

    @property
    def active(self) -> bool:
        """Whether the session is on, in this process."""
        return bool(self.start_ns) and self.end_ns is None and self.recording.pid == os.getpid()

    @property
    def phase(self) -> Phase:
        """What the session does with what runs now, by its schedule."""
        schedule = self.options.schedule
        return "active" if schedule is None else schedule.phase(self.steps)
