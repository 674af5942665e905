"""Processes seen from outside: the events of those that listen, and samples of one, as one trace."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars

from tessera.errors import AttachError, ProfileError
from tessera.profiling.attach.client import Attachment
from tessera.profiling.sampling import sampling
from tessera.profiling.sampling.samples import annotated
from tessera.profiling.sampling.sampling import Sampling
from tessera.profiling.trace.schema import FORMAT_VERSION
from tessera.profiling.trace.table import COLUMNS, Trace, frame

_APART: Final = 1 << 20
"""Plans and correlations of the second process count from here on, those of the third from twice this, ..."""


@dataclass(frozen=True)
class ObservationRequest:
    """What to observe: activities of sessions, activities that counters are asked for (None: all), the interval of
    sampling (None: none), shapes of operands, Python stacks through py-spy.
    """

    activities: Sequence[str] = ("cpu",)
    counters: Sequence[str] | None = None
    sample_interval_ms: float | None = 10.0
    record_shapes: bool = False
    stacks: bool = False


class Observation:
    """What was observed so far. Processes may join while another thread reads."""

    def __init__(self, wishes: ObservationRequest) -> None:
        self.wishes = wishes
        self.attachments: list[Attachment] = []
        self.sampling: Sampling | None = None
        self.sampled_pid: int | None = None
        self.lost: list[str] = []
        """Why sessions ended before they were stopped, though their processes did not end."""
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
        """Fetches what the processes recorded since the last call. One that does not answer any more is let go; what
        it told before is kept, and `lost` says why.
        """
        for each in self._known():
            try:
                each.read()
            except AttachError as error:
                self._let_go(each, error)

    @property
    def ran(self) -> bool:
        """Whether some process has run a kernel."""
        return any(part.rest.get("launched") for each in self._known() for part in each.increments)

    def end(self) -> None:
        """Ends all sessions and the sampling, and fetches the rest. Processes that do not answer any more keep it."""
        with self._lock:
            self._ended = True
        for each in self._known():
            try:
                each.stop()
            except AttachError as error:
                self._let_go(each, error)
        if self.sampling is not None:
            self.sampling.end()

    def _let_go(self, attachment: Attachment, error: AttachError) -> None:
        attachment.ended = True
        attachment.close()
        self.lost.append(error.message)

    def _known(self) -> list[Attachment]:
        with self._lock:
            return list(self.attachments)

    def trace(self) -> Trace:
        """All of it, by start; starts count from the first session's beginning, or the first sample. Kernels have the
        state of their device (power, temperature) from the samples. Call it once, after `end`.
        """
        told = [each for each in self.attachments if each.increments]  # the others died before they could tell
        traces, zeros = [each.trace() for each in told], [each.start_ns for each in told]
        sampled = frame({}) if self.sampling is None else self.sampling.take()
        zero = min([*zeros, *sampled["start_ns"].head(1)], default=0)
        ranks = _ranks(traces)
        parts = [
            _moved(trace.events, start - zero, number * _APART).with_columns(rank=polars.lit(rank, COLUMNS["rank"]))
            for number, (trace, start, rank) in enumerate(zip(traces, zeros, ranks, strict=True))
        ]
        samples = (
            _moved(sampled.lazy(), -zero, 0).with_columns(pid=polars.lit(self.sampled_pid, COLUMNS["pid"])).collect()
        )
        events = _ordered(polars.concat([frame({}).lazy(), *parts]).collect(), samples)
        held = {name for name in events.columns if events[name].null_count() < len(events)}
        about = _metadata(traces, ranks, [start - zero for start in zeros]) | self._own_metadata()
        capability = {name: why for name, why in self._capability(traces).items() if name not in held}
        return Trace(events.lazy(), about, capability)

    def _own_metadata(self) -> dict[str, Any]:
        processes = [
            {"pid": each.process.pid, "command": each.hello["command"], "whole": each.complete}
            for each in self.attachments
        ]
        return {"processes": processes} | ({} if self.sampling is None else {"sampling": self.sampling.metadata()})

    def _capability(self, traces: Sequence[Trace]) -> dict[str, str]:
        """Why columns are null: as the sampling says, else the sessions."""
        told = {name: why for trace in traces for name, why in trace.capability.items()}
        return told | (self.sampling.capability if self.sampling is not None else {})


def _moved(events: polars.LazyFrame, shift_ns: int, apart: int) -> polars.LazyFrame:
    return events.with_columns(
        polars.col("start_ns") + shift_ns, polars.col("plan_id") + apart, polars.col("correlation") + apart
    )


def _ordered(events: polars.DataFrame, samples: polars.DataFrame) -> polars.DataFrame:
    """Events and samples by start, the outer before the inner; kernels with what samples say of their device."""
    is_kernel = polars.col("kind") == "kernel"
    kernels = annotated(events.filter(is_kernel), samples) if len(samples) else events.filter(is_kernel)
    parts = [kernels, events.filter(~is_kernel), samples]
    return polars.concat(parts).sort("start_ns", "dur_ns", descending=[False, True], maintain_order=True)


def _ranks(traces: Sequence[Trace]) -> list[int]:
    """The rank of each process. Where two say that they are the same one, all are numbered as they came."""
    told = [int(next(iter(trace.metadata["ranks"]))) for trace in traces]
    return told if len(set(told)) == len(told) else list(range(len(told)))


def _metadata(traces: Sequence[Trace], ranks: Sequence[int], delays_ns: Sequence[int]) -> dict[str, Any]:
    """What the processes say of themselves, as of one trace. `delays_ns`: how long after its zero each began."""
    if not traces:
        return {"format": FORMAT_VERSION, "source": "tessera"}
    told = [trace.metadata for trace in traces]
    reasons: dict[str, int] = {}
    plans: dict[str, Any] = {}
    for number, each in enumerate(told):
        for reason, count in each["dropped_reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + count
        plans |= {str(int(plan) + number * _APART): computes for plan, computes in each["plans"].items()}
    zero_unix = told[0]["start_unix_ns"] - delays_ns[0]
    return {
        **told[0],
        **{name: sum(each[name] for each in told) for name in ("launched", "recorded", "dropped")},
        "dropped_reasons": reasons,
        "start_unix_ns": zero_unix,
        "duration_ns": max(each["duration_ns"] + delay for each, delay in zip(told, delays_ns, strict=True)),
        "ranks": {
            str(rank): next(iter(each["ranks"].values())) | {"start_unix_ns": zero_unix}
            for rank, each in zip(ranks, told, strict=True)
        },
        "thread_names": {thread: name for each in told for thread, name in each["thread_names"].items()},
        "plans": plans,
    }
