"""What a session recorded as columns: native records and what Python noted, joined with what the compiler said.

Only columns that have values are made; `table.complete` adds the others when somebody reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray

from tessera.profiling.analyses.sweep import with_overlap
from tessera.profiling.recording import tracks
from tessera.profiling.recording.attribution import IssuedWork, asked, region_codes
from tessera.profiling.recording.callers import Callers
from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.recording.facts import StepFacts, Traffic
from tessera.profiling.recording.recording import CountedKernel, Recording, rank
from tessera.profiling.recording.regions import Presence, RegionEvent
from tessera.profiling.recording.totals import distinct
from tessera.profiling.recording.tracks import Service
from tessera.profiling.ring.layout import RECORD_FIELDS
from tessera.profiling.sampling.samples import annotated
from tessera.profiling.trace import records
from tessera.profiling.trace.schema import TRACE_CAPABILITIES, Record
from tessera.profiling.trace.table import COLUMNS, Trace, complete, given

_PLACE: Final = {name: place for place, name in enumerate(RECORD_FIELDS)}

Integers = NDArray[numpy.int64]


def trace_of(recording: Recording) -> Trace:
    """All events, by start, with what a file says of them."""
    events = events_of(recording)
    constant = {"rank": rank(), "pid": recording.pid, "device": "cpu"}
    filled = [
        (polars.col(name).fill_null(value) if name in events.columns else polars.lit(value, COLUMNS[name])).alias(name)
        for name, value in constant.items()
    ]
    held = {*events.columns, *constant}
    reasons = {**TRACE_CAPABILITIES, **recording.capability}
    absent = {name: reasons[name] for name in COLUMNS if name in reasons and name not in held}
    return Trace(complete(events.lazy().with_columns(filled), held), recording.metadata(), absent)


def records_of(recording: Recording) -> list[Record]:
    """All events in order of their start, in the portable schema."""
    return records.of_events(events_of(recording), recording.capability)


def events_of(recording: Recording) -> polars.DataFrame:
    """All events by start, the outer before the inner, with those columns that have values."""
    around = ThreadContext(recording.presences, recording.issued, recording.services, recording.callers)
    zero = recording.start_ns
    rows = recording.kernel_rows()
    measured = kernels(rows, zero, around, recording.step_facts, shapes=recording.record_shapes)
    if recording.counted:
        measured = _with_counters(measured, recording.counted, zero)
    others = [
        regions(recording.regions, zero),
        marks(recording.marks, zero),
        counters(recording.counters, zero),
        noted_events(list(recording.events), zero, around),
    ]
    if recording.samples:
        sampled = polars.concat(recording.samples)
        held = [name for name in sampled.columns if sampled[name].null_count() < len(sampled)]
        measured, others = _with_conditions(measured, sampled), [*others, sampled.select(held)]
    filled = [part for part in others if len(part)]
    if not filled:
        return measured
    order = ["start_ns", "dur_ns"]
    events = polars.concat([measured, *filled], how="diagonal")
    return with_overlap(events.sort(order, descending=[False, True], maintain_order=True))


def _with_counters(kernels: polars.DataFrame, counted: Sequence[CountedKernel], zero_ns: int) -> polars.DataFrame:
    """Kernels with what was counted of each."""
    names = list(dict.fromkeys(name for each in counted for name in each.columns))
    found = given(
        {
            "plan_id": [each.plan for each in counted],
            "step_id": [each.step for each in counted],
            "start_ns": [each.start_ns - zero_ns for each in counted],
            **{name: [each.columns.get(name) for each in counted] for name in names},
        }
    )
    return kernels.join(found, on=("plan_id", "step_id", "start_ns"), how="left", maintain_order="left")


def _with_conditions(kernels: polars.DataFrame, sampled: polars.DataFrame) -> polars.DataFrame:
    """Kernels with what was sampled of their device while they ran."""
    held = {*kernels.columns, "device"}
    missing = [polars.lit(None, kind).alias(name) for name, kind in COLUMNS.items() if name not in held]
    device = [] if "device" in kernels.columns else [polars.lit("cpu", COLUMNS["device"]).alias("device")]
    found = annotated(kernels.with_columns(device + missing), sampled)
    return found.select([name for name in found.columns if name in held or found[name].null_count() < len(found)])


class ThreadContext:
    """Where and for whom threads worked: their streams, and the regions that asked for the work."""

    def __init__(
        self,
        presences: Sequence[Presence],
        issued: Iterable[IssuedWork],
        services: Mapping[int, Sequence[Service]],
        callers: Callers | None = None,
    ) -> None:
        self._issued, self._services, self._callers = list(issued), services, callers
        self._presences = list(presences)

    def columns(self, threads: Integers, starts: Integers) -> dict[str, Any]:
        """`region`, `stream_id`, `stream_name` and `stack` of events that began on these threads at these instants."""
        found = self._streams(threads, starts)
        askers, instants = asked(self._issued, threads, starts)
        codes, names = region_codes(self._presences, askers, instants)
        if len(names) > 1:
            found["region"] = labels(names, codes)
        if self._callers is not None:
            codes, stacks = self._callers.codes(askers, instants)
            found["stack"] = labels(stacks, codes)
        return found

    def _streams(self, threads: Integers, starts: Integers) -> dict[str, Any]:
        served = [tracks.PROGRAM]
        codes = numpy.zeros(len(starts), numpy.uint32)
        for thread, services in self._services.items():
            mine = threads == thread
            if not mine.any():
                continue
            code = numpy.arange(len(services) + 1) + len(served) - 1
            code[0] = 0
            served += [service.track for service in services]
            begins = numpy.array([service.start_ns for service in services])
            codes[mine] = code[numpy.searchsorted(begins, starts[mine], side="right")]
        numbers = numpy.array([track.stream_id for track in served], numpy.int32)
        if len(served) == 1:
            return {"stream_id": numbers[codes]}
        return {"stream_id": numbers[codes], "stream_name": labels([track.name or None for track in served], codes)}


def noted_events(events: Sequence[RecordedEvent], zero_ns: int, surroundings: ThreadContext) -> polars.DataFrame:
    """Events that Python code noted."""
    threads = numpy.array([each.thread for each in events], numpy.int64)
    starts = numpy.array([each.start_ns for each in events], numpy.int64)
    told = {name for each in events for name in each.columns}
    around = surroundings.columns(threads, starts)
    for name in sorted(told & {"stream_id", "stream_name"}):
        usual = around.get(name, [None] * len(events))
        around[name] = [each.columns.get(name, other) for each, other in zip(events, list(usual), strict=True)]
        told.remove(name)
    return given(
        {
            "kind": [each.kind for each in events],
            "kernel_name": [each.name for each in events],
            "start_ns": starts - zero_ns,
            "dur_ns": [each.end_ns - each.start_ns for each in events],
            "thread_id": threads,
            **around,
            **{name: [each.columns.get(name) for each in events] for name in COLUMNS if name in told},
        }
    )


def labels(names: Sequence[str | None], codes: NDArray[Any]) -> polars.Series:
    """A column of text, by the place of each row's text in `names`."""
    return polars.Series(names, dtype=polars.Categorical()).gather(codes)


def kernels(
    rows: Integers,
    zero_ns: int,
    surroundings: ThreadContext,
    facts: Callable[[int, int], StepFacts],
    *,
    shapes: bool,
) -> polars.DataFrame:
    """The kernels of native records, times in nanoseconds of `time.monotonic_ns`. `start_ns` counts from `zero_ns`;
    `facts` says what is known of a step of a plan; without `shapes` they are left out.
    """
    start, plan, step, thread = (rows[:, _PLACE[name]] for name in ("start", "plan", "step", "thread"))
    device = rows[:, _PLACE["device"]]
    # What a GPU ran belongs to the region and the stream from which it was launched.
    began = numpy.where(device > 0, rows[:, _PLACE["sequence"]], start)
    pairs, codes = distinct(plan, step)
    known = _facts_table([facts(*pair) for pair in pairs], shapes=shapes)[codes]
    measured = given(
        {
            "kind": polars.repeat("kernel", len(rows), dtype=COLUMNS["kind"], eager=True),
            "start_ns": start - zero_ns,
            "dur_ns": rows[:, _PLACE["end"]] - start,
            "thread_id": thread,
            "plan_id": plan.astype(numpy.int32),
            "step_id": step.astype(numpy.int32),
            "workers": rows[:, _PLACE["workers"]].astype(numpy.int32),
            **surroundings.columns(thread, began),
            **({"device": labels(_devices(int(device.max())), device)} if device.any() else {}),
        }
    )
    return polars.concat([measured, known], how="horizontal")


def _devices(count: int) -> list[str | None]:
    """The names of the numbers in native records, so many GPUs given."""
    return ["cpu", *(f"cuda:{number}" for number in range(count))]


def _facts_table(facts: Sequence[StepFacts], *, shapes: bool) -> polars.DataFrame:
    """One row for each step."""
    return given(
        {
            "kernel_name": [each.kernel_name for each in facts],
            "operator": [each.operator for each in facts],
            "flops": [each.flops for each in facts],
            "bytes": [each.bytes for each in facts],
            "dtype": [each.dtype or None for each in facts],
            "schedule": [each.schedule or None for each in facts],
            "schedule_source": [each.schedule_source or None for each in facts],
            "fused": ["+".join(each.fused) or None for each in facts],
            "rewrites": [",".join(each.rewrites) or None for each in facts],
            "traffic": [_traffic(each.traffic) for each in facts],
            "backend": [each.backend or None for each in facts],
            **({"shapes": [json.dumps(each.shapes, separators=(",", ":")) for each in facts]} if shapes else {}),
        }
    )


def _traffic(traffic: Traffic) -> str | None:
    return json.dumps({level: round(nbytes) for level, nbytes in traffic}, separators=(",", ":")) if traffic else None


def regions(events: Sequence[RegionEvent], zero_ns: int) -> polars.DataFrame:
    """The regions that have ended."""
    return given(
        {
            "kind": polars.repeat("region", len(events), eager=True),
            "kernel_name": [each.name for each in events],
            "start_ns": [each.start_ns - zero_ns for each in events],
            "dur_ns": [each.end_ns - each.start_ns for each in events],
            "thread_id": [each.thread for each in events],
        }
    )


def marks(events: Sequence[tuple[int, str, int]], zero_ns: int) -> polars.DataFrame:
    """Instants that the program named: (time, name, thread)."""
    return given(
        {
            "kind": polars.repeat("mark", len(events), eager=True),
            "kernel_name": [name for _, name, _ in events],
            "start_ns": [instant - zero_ns for instant, _, _ in events],
            "dur_ns": polars.repeat(0, len(events), eager=True),
            "thread_id": [thread for _, _, thread in events],
        }
    )


def counters(events: Sequence[tuple[int, str, float, str]], zero_ns: int) -> polars.DataFrame:
    """Values that the program gave: (time, name, value, unit)."""
    return given(
        {
            "kind": polars.repeat("counter", len(events), eager=True),
            "kernel_name": [name for _, name, _, _ in events],
            "start_ns": [instant - zero_ns for instant, _, _, _ in events],
            "dur_ns": polars.repeat(0, len(events), eager=True),
            "value": [value for _, _, value, _ in events],
            "unit": [unit or None for _, _, _, unit in events],
        }
    )
