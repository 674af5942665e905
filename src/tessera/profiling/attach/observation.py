"""Processes seen from outside: the events of those that listen, and samples of one, as one trace."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars

from tessera.errors import AttachError, ProfileError
from tessera.profiling import sampling
from tessera.profiling.attach.client import Attachment
from tessera.profiling.sampling import Sampling
from tessera.profiling.schema import FORMAT_VERSION
from tessera.profiling.table import COLUMNS, Trace

_APART: Final = 1 << 20
"""Plans and correlations of the second process count from here on, those of the third from twice this, ..."""


@dataclass(frozen=True)
class Wishes:
    """What to observe: activities of sessions, activities that counters are asked for (None: all), the interval of
    sampling (None: none), shapes of operands, Python stacks through py-spy.
    """

    activities: Sequence[str] = ("cpu",)
    counters: Sequence[str] | None = None
    sample_interval_ms: float | None = 10.0
    record_shapes: bool = False
    stacks: bool = False


class Observation:
    """What was observed so far. Thread-safe: processes join while another thread reads."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes = wishes
        self.attachments: list[Attachment] = []
        self.sampling: Sampling | None = None
        self.sampled_pid: int | None = None
        self._ended = False
        self._lock = threading.Lock()

    def join(self, attachment: Attachment) -> None:
        """Begins a session in a process that listens. Raises AttachError where it refuses, or this has ended; the
        process is then let go.
        """
        try:
            with self._lock:
                if self._ended:
                    raise AttachError(f"process {attachment.process.pid} came when recording had ended")
                attachment.start(self.wishes.activities, record_shapes=self.wishes.record_shapes)
                self.attachments.append(attachment)
        except AttachError:
            attachment.close()
            raise

    def sample(self, pid: int) -> None:
        """Begins to sample a process, if that is wished. Raises ProfileError where it is gone or somebody else's."""
        if self.wishes.sample_interval_ms is None:
            return
        self.sampled_pid = pid
        try:
            self.sampling = sampling.sample_process(
                pid,
                interval_ms=self.wishes.sample_interval_ms,
                activities=self.wishes.counters,
                stacks=self.wishes.stacks,
            )
        except (ProcessLookupError, FileNotFoundError):  # between two files of its folder in /proc
            raise ProfileError(f"process {pid} has just ended") from None

    def read(self) -> None:
        """Fetches what the processes recorded since the last call."""
        for each in self._known():
            each.read()

    def end(self) -> None:
        """Ends all sessions and the sampling, and fetches the rest. Processes that do not answer any more keep it."""
        with self._lock:
            self._ended = True
        for each in self._known():
            try:
                each.stop()
            except AttachError:
                each.close()
        if self.sampling is not None:
            self.sampling.end()

    def _known(self) -> list[Attachment]:
        with self._lock:
            return list(self.attachments)

    def trace(self) -> Trace:
        """All of it, by start; starts count from the first session's beginning, or the first sample. Call it once,
        after `end`.
        """
        traces = [each.trace() for each in self.attachments]
        zeros = [each.start_ns for each in self.attachments]
        samples = None if self.sampling is None else self.sampling.take()
        if samples is not None and len(samples):
            zeros.append(int(samples["start_ns"][0]))
        zero = min(zeros, default=0)
        parts = [
            _moved(trace.events, each.start_ns - zero, number * _APART)
            for number, (trace, each) in enumerate(zip(traces, self.attachments, strict=True))
        ]
        if samples is not None:
            parts.append(
                _moved(samples.lazy(), -zero, 0).with_columns(pid=polars.lit(self.sampled_pid, COLUMNS["pid"]))
            )
        events = polars.concat(parts) if parts else polars.LazyFrame(schema=dict(COLUMNS))
        order = ["start_ns", "dur_ns"]
        ordered = events.sort(order, descending=[False, True], maintain_order=True)
        return Trace(ordered, self._metadata(traces), self._capability(traces))

    def _metadata(self, traces: Sequence[Trace]) -> dict[str, Any]:
        counts = ("launched", "recorded", "dropped")
        reasons: dict[str, int] = {}
        plans: dict[str, Any] = {}
        for number, trace in enumerate(traces):
            for reason, count in trace.metadata["dropped_reasons"].items():
                reasons[reason] = reasons.get(reason, 0) + count
            plans |= {str(int(plan) + number * _APART): told for plan, told in trace.metadata["plans"].items()}
        return {
            **(traces[0].metadata if traces else {"format": FORMAT_VERSION, "source": "tessera"}),
            **{name: sum(trace.metadata[name] for trace in traces) for name in counts},
            "dropped_reasons": reasons,
            "plans": plans,
            "processes": [
                {"pid": each.process.pid, "command": each.hello["command"], "whole": each.complete}
                for each in self.attachments
            ],
            **({} if self.sampling is None else {"sampling": self.sampling.metadata()}),
        }

    def _capability(self, traces: Sequence[Trace]) -> dict[str, str]:
        """Why columns are null: as each of the sessions says, and where the sampling does not fill them."""
        shared = set.intersection(*(set(trace.capability) for trace in traces)) if traces else set()
        told = {name: traces[0].capability[name] for name in shared}
        if self.sampling is not None:
            told |= {name: why for name, why in self.sampling.capability.items() if name in told or not traces}
        return told


def _moved(events: polars.LazyFrame, shift_ns: int, apart: int) -> polars.LazyFrame:
    return events.with_columns(
        polars.col("start_ns") + shift_ns, polars.col("plan_id") + apart, polars.col("correlation") + apart
    )
