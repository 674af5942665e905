"""The timeline file, in Chrome's trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format" (Google, 2016). `traceEvents` is the first key and every event has a line of its own, so
that a reader can stream it. Slices on one track nest or are disjoint, since Perfetto silently drops slices that cross.

What is the same in every run of a kernel (its operations, bytes, schedule) stands in the first slice of its number `k`
only, where a trace is long: it would be two thirds of the file. What readers need beside the events follows them:

| key | what it holds |
| --- | --- |
| `tesseraPlans` | what each plan computes, so that `tessera tune --from-trace` can pose its kernels again |
| `tesseraKernels` | what is the same for all slices of a number `k` |
| `tesseraTracks` | the process, thread, stream and device behind each `pid` and `tid` |
| `otherData` | how many kernels were launched, recorded and dropped, and why counters are missing |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy
import polars
from numpy.typing import NDArray

from tessera.profiling.export.chrome_facts import COUNTERS, FACTS, OPENING, SLICES
from tessera.profiling.export.chrome_lines import arrows, lines
from tessera.profiling.export.contract import Format
from tessera.profiling.export.output import exported
from tessera.profiling.trace import nesting
from tessera.profiling.trace.grouping import by_lane, numbered
from tessera.profiling.trace.schema import PCT_NOTE
from tessera.profiling.trace.table import Trace


@dataclass(frozen=True, slots=True)
class ChromeExporter:
    """Writes Chrome traces."""

    path: Path
    needs_kernels: ClassVar[bool] = True

    def export(self, trace: Trace) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(trace, self.path)


def write(trace: Trace, path: Path) -> Path:
    """Writes a trace of any source, compressed if the name ends in `.gz`; gives its path. Raises ProfileError when it
    cannot be written.
    """
    with exported(path, "timeline") as file:
        for piece in pieces(trace):
            file.write(piece)
    return path


def pieces(trace: Trace) -> Iterator[bytes]:
    """The file in pieces."""
    events = trace.events.collect()
    tracks, lanes = by_lane(events)
    lanes = lanes.drop("row").with_columns(process=_processes(lanes), track=numpy.arange(1, len(lanes) + 1))
    starts, ends, shift = _edges(events, tracks)
    own = [name for name in (*COUNTERS, "correlation") if events[name].null_count() < len(events)]
    numbers, kinds = numbered(
        events.with_columns(lane=polars.Series(tracks)), ("kind", "lane", "unit", "device", *FACTS)
    )
    kinds = kinds.with_columns(k=numpy.arange(len(kinds)))
    opening = {"name": OPENING, "ph": "M", "pid": next(iter(lanes["process"]), 0), "tid": 0, "args": {"own": own}}
    names = [opening, *_names(lanes, trace.metadata)]
    yield b'{"traceEvents": [\n' + ",\n".join(map(json.dumps, names)).encode() + b"\n"
    rows = events.select("kind", "value", "rank", *{*own, "correlation"}).with_columns(
        ts=polars.Series(starts / 1000),  # of numpy, which rounds correctly: 2671 / 1000 is 2.671
        dur=polars.Series((ends - starts) / 1000),
        number=polars.Series(numbers),
        lane=polars.Series(tracks),
    )
    yield from lines(rows, kinds, lanes, own)
    yield arrows(rows, lanes)
    about = {name: value for name, value in trace.metadata.items() if name != "plans"}
    about |= {"percentages": PCT_NOTE, "largest_edge_shift_us": shift / 1000, "unavailable": trace.capability}
    kernels = kinds.filter(polars.col("kind").is_in(SLICES[:-1])).select("k", *FACTS)
    beside = {
        "tesseraPlans": trace.metadata.get("plans", {}),
        "tesseraKernels": _columns(kernels),
        "tesseraTracks": _columns(lanes),
        "otherData": about,
    }
    keys = [f'"{name}": {json.dumps(value)}' for name, value in beside.items()]
    yield ("],\n" + ",\n".join(keys) + "\n}\n").encode()


def _columns(table: polars.DataFrame) -> dict[str, list[Any]]:
    """A table as plain JSON; columns without values are left out, and numbers that JSON has not are null."""
    floats = [name for name, kind in table.schema.items() if kind.is_float()]
    plain = table.with_columns(polars.when(polars.col(name).is_finite()).then(name).alias(name) for name in floats)
    return {column.name: column.to_list() for column in plain if column.null_count() < len(plain)}


def _processes(lanes: polars.DataFrame) -> polars.Series:
    """By track, the number of the process: the system's, or one of our own where two ranks have the same."""
    pairs = list(zip(lanes["rank"].fill_null(0), lanes["pid"].fill_null(0), strict=True))
    distinct = list(dict.fromkeys(pairs))
    shared = len({pid for _, pid in distinct}) < len(distinct)
    numbers = [1 + distinct.index(pair) if shared else pair[1] for pair in pairs]
    return polars.Series("process", numbers, polars.Int64)


def _names(lanes: polars.DataFrame, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Names of the processes, and of their threads and streams, also of those that have ended."""
    threads = metadata.get("thread_names", {})
    ranks = lanes["rank"].n_unique()
    processes: dict[int, dict[str, Any]] = {}
    tracks = []
    for lane in lanes.iter_rows(named=True):
        rank, pid, thread, process = lane["rank"], lane["pid"], lane["thread_id"], lane["process"]
        label = f"tessera {pid}" if ranks == 1 else f"rank {rank}, process {pid}"
        processes[process] = _name("process_name", process, 0, label)
        if thread is None and lane["device"].startswith("cpu"):
            continue  # counters, which are of the process
        label = threads.get(str(thread), f"thread {thread or 0:#x}")
        if lane["stream_id"] or thread is None:
            label = lane["stream_name"] or f"{lane['device']} stream {lane['stream_id']}"
        tracks.append(_name("thread_name", process, lane["track"], label))
    return [*processes.values(), *tracks]


def _name(what: str, process: int, track: int, label: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": label}}


def _edges(
    events: polars.DataFrame, tracks: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], int]:
    """Starts and ends in nanoseconds, those of slices nested, and the largest shift."""
    starts = events["start_ns"].to_numpy(writable=True)
    ends = starts + events["dur_ns"].fill_null(0).to_numpy()
    slices = numpy.flatnonzero(events["kind"].is_in(SLICES).to_numpy())
    starts[slices], ends[slices], shift = nesting.fit(starts[slices], ends[slices], tracks[slices])
    return starts, ends, shift


FORMAT: Final = Format(lambda path: ChromeExporter(Path(path)), (".json", ".json.gz"))
