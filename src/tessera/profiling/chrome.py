"""The timeline file, in Chrome's trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format" (Google, 2016). `traceEvents` is the first key, so that a reader can stream it. Slices on
one track nest or are disjoint, since Perfetto silently drops slices that cross. `otherData` says how many kernels
were launched, recorded and dropped, and why counters are missing. `tesseraPlans` says what each plan computes, so that
`tessera tune --from-trace` can pose its kernels again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import ProfileError
from tessera.profiling import facts
from tessera.profiling.regions import Slice, nest
from tessera.profiling.schema import CAPABILITIES, PCT_NOTE, Record
from tessera.profiling.sessions import Session

Event = dict[str, Any]
Lane = tuple[int, int, str]
"""What has a track of its own: a thread, the number of the stream that it served (0: none), and the stream's name."""


@dataclass(frozen=True, slots=True)
class ChromeExporter:
    """Writes a session as a Chrome trace."""

    path: Path

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        try:
            with self.path.open("w") as file:
                file.writelines(text(session))
        except OSError as error:
            raise ProfileError(f"the timeline could not be written to {self.path}: {error.strerror}") from error
        return self.path


def text(session: Session) -> Iterator[str]:
    """The file's text in pieces."""
    records = session.records()
    # Small numbers in order of appearance: viewers read thread numbers as 32 bits, and Python's do not fit.
    tracks = {lane: track for track, lane in enumerate(dict.fromkeys(_lanes(records)), 1)}
    slices, largest = _slices(records, tracks)
    yield '{"traceEvents": [\n'
    separator = ""
    for event in [*_names(tracks, session), *slices, *_instants(records, tracks)]:
        yield separator + json.dumps(event)
        separator = ",\n"
    rest = json.dumps({"displayTimeUnit": "ns", "otherData": metadata(session, largest)}, indent=1)
    yield f'\n],\n"tesseraPlans": {json.dumps(_plans(session, records))},\n' + rest[1:].lstrip()


def _lanes(records: Iterable[Record]) -> Iterator[Lane]:
    return (_lane(record) for record in records if record.kind != "counter")


def _lane(record: Record) -> Lane:
    return record.thread_id, record.stream_id, record.stream_name


def metadata(session: Session, largest_shift_ns: int) -> Event:
    """What the file says about itself."""
    return {
        "launched": session.launched,
        "recorded": session.recorded,
        "dropped": session.dropped,
        "dropped_reasons": {
            "overwritten": session.overwritten,
            "unfinished": session.unfinished,
            **{f"not measured on {device}": kernels for device, kernels in session.unmeasured.items()},
        },
        "percentages": PCT_NOTE,
        "largest_edge_shift_us": largest_shift_ns / 1000,
        "activities": list(session.activities),
        "unavailable": {**session.capability, **CAPABILITIES},
    }


def _plans(session: Session, records: Iterable[Record]) -> dict[str, Any]:
    """What the plans behind kernels compute, by number; those forgotten before the session ended are missing."""
    ran = {record.plan_id for record in records if record.kind == "kernel"}
    known = {**facts.expressions(ran - session.plans.keys()), **session.plans}
    return {str(number): tell() for number, tell in known.items()}


def _slices(records: Iterable[Record], tracks: Mapping[Lane, int]) -> tuple[list[Event], int]:
    """Kernels, copies and regions, track by track, nested; and the largest shift of an edge in nanoseconds."""
    lanes: dict[Lane, list[Slice]] = {}
    for record in records:
        if record.kind in ("kernel", "memcpy", "region"):
            edges = round(record.start_us * 1000), round(record.end_us * 1000)
            lanes.setdefault(_lane(record), []).append(Slice(*edges, record))
    events: list[Event] = []
    largest = 0
    for lane, slices in lanes.items():
        nested, shift = nest(slices)
        largest = max(largest, shift)
        events.extend(_slice_event(each, tracks[lane]) for each in nested)
    return events, largest


def _slice_event(each: Slice, track: int) -> Event:
    record = each.payload
    event: Event = {
        "name": record.operator or record.kernel_name,
        "ph": "X",
        "ts": each.start_ns / 1000,
        "dur": (each.end_ns - each.start_ns) / 1000,
        "pid": os.getpid(),
        "tid": track,
        "cat": record.kind,
    }
    if record.kind == "kernel":
        event["args"] = _kernel_arguments(record)
    if record.kind == "memcpy":
        event["args"] = {
            "bytes": record.bytes,
            "memcpy_dir": record.memcpy_dir,
            "memcpy_gbps": record.memcpy_gbps,
            "stream": record.stream_name,
        }
    return event


def _kernel_arguments(record: Record) -> Event:
    seconds = record.duration_us / 1e6
    arguments: Event = {
        "kernel": record.kernel_name,
        "workers": record.workers,
        "plan": record.plan_id,
        "step": record.step_id,
        "stream": record.stream_name,
        "region": record.region,
        "dtype": record.dtype,
        "schedule": record.schedule,
        "fused": list(record.fused),
        "flops": record.flops,
        "bytes": record.bytes,
    }
    if seconds > 0 and record.flops is not None and record.bytes is not None:
        arguments["gflop_per_s"] = record.flops / seconds / 1e9
        arguments["bandwidth_gbps"] = record.bytes / seconds / 1e9
    if record.shapes:
        arguments["shapes"] = [list(shape) for shape in record.shapes]
    return arguments


def _instants(records: Iterable[Record], tracks: Mapping[Lane, int]) -> Iterator[Event]:
    for record in records:
        common: Event = {"name": record.kernel_name, "ts": record.start_us, "pid": os.getpid(), "cat": record.kind}
        if record.kind == "mark":
            yield {**common, "ph": "i", "s": "t", "tid": tracks[_lane(record)]}
        elif record.kind == "counter":
            yield {**common, "ph": "C", "args": {record.unit or "value": record.value}}


def _names(tracks: Mapping[Lane, int], session: Session) -> Iterator[Event]:
    """Names of the process, and of its streams and threads, also of those that have ended."""
    names = session.thread_names | {thread.ident: thread.name for thread in threading.enumerate() if thread.ident}
    yield {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": f"tessera {os.getpid()}"}}
    for (thread, stream, name), track in tracks.items():
        label = name if stream else names.get(thread, f"thread {thread:#x}")
        yield {"name": "thread_name", "ph": "M", "pid": os.getpid(), "tid": track, "args": {"name": label}}
