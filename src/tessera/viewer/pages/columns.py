"""Slices of a trace as packed columns, which a page draws without further parsing.

`TSR1`, the length of a JSON head (uint32), the head, then the columns, all little-endian. The head:

| key | what it holds |
| --- | --- |
| `n` | slices that are in the columns; of `total`, `summed` are in sums by lane and bin of time |
| `lanes` | for each lane `first`, `count`, `label`, `rank`, `device`, `depth`; slices stand by lane, then by start |
| `names`, `kinds` | what the columns `name` and `kind` count |
| `works` | what the column `work` counts: `dtype`, `region`, and `least_us`, the bound of the ceilings, or null |
| `columns` | for each column its `width` in bytes, the `sizes` of its packed planes, and `escapes` |
| `odd` | how many events have no time to draw, or a strange name, by `reasons`, of `total` |
| `marks`, `shift_us` | instants with names; by how much slices were moved so that they nest |

A column of w bytes is w planes: all lowest bytes, then the next ones, each deflated. `start` is the distance to the
start of the slice before in the lane, in nanoseconds; what does not fit 32 bits stands in `escapes` as [slice, value].
The column `launch`, which is there where anything was launched, is the number of the slice that did, from 1 on, or 0.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.profiling.analyses.kernels import NAME
from tessera.profiling.export.chrome_facts import SLICES
from tessera.profiling.trace import nesting
from tessera.profiling.trace.grouping import by_lane
from tessera.profiling.trace.table import KINDS, Trace
from tessera.viewer import waiting
from tessera.viewer.pages import works

MAGIC: Final = b"TSR1"
MOST_SLICES: Final = 2_000_000
"""Slices that a page gets one by one; of more, the longest, and sums of the others."""
BINS: Final = 4096
"""Bins of time that sums are made of."""
SHORTER: Final = "shorter slices, summed"
MOST_MARKS: Final = 2000
LONGEST_NAME: Final = 10_000
_DEEPEST: Final = 255
_LARGEST: Final = numpy.iinfo(numpy.uint32).max
_ESCAPE: Final = int(_LARGEST)
_LEVEL: Final = 1
_TRIED: Final = 1 << 15
"""Bytes of a plane by which it is seen whether deflating pays."""
_PAYS: Final = 0.98
_PACKERS: Final = 2
"""Threads that deflate."""
KEPT: Final = 10
"""One of so many that a page may get is kept where there are more."""
_CONTROL: Final = r"[\x00-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_READ, _NESTED, _ORDERED = 0.3, 0.5, 0.7
"""Shares of the steps that are done once slices are read, made to nest, and in order; they are packed last."""
_LANE: Final = ("rank", "pid", "device", "thread_id", "stream_id", "stream_name")

Integers = NDArray[numpy.int64]


@dataclass(frozen=True)
class _Beside:
    """What threads of their own find out while slices are made to nest."""

    works: Future[tuple[Integers, list[dict[str, Any]]]]
    odd: Future[dict[str, Any]]


def slices(
    trace: Trace, most: int = MOST_SLICES, window: tuple[int, int] | None = None
) -> tuple[polars.DataFrame, int, int]:
    """The slices of a trace, or those that touch a `window` of time, by start, with the column `event`, their row in
    the trace; how many there are; and how many of these are summed: beyond `most` the longest alone are kept, and what
    the others took stands by lane and bin of time, as slices with a negative `pid` and without an event.
    """
    duration = col("dur_ns").fill_null(0).clip(0)
    found = trace.events.with_row_index("event").filter(col("kind").is_in(SLICES))
    if window is not None:
        found = found.filter((col("start_ns") < window[1]) & (col("start_ns") + duration > window[0]))
    columns = [
        col("event").cast(polars.Int64),
        *(col(name) for name in ("kind", "start_ns", *_LANE)),
        duration.alias("dur_ns"),
        *(col(name) for name in (*works.KEYS, "correlation")),
        NAME.alias("name"),
    ]
    facts = found.select(polars.len(), first=col("start_ns").min(), last=col("start_ns").max())
    total, first, last = facts.collect(engine="streaming").row(0)
    summed = 0
    if total <= most:
        table = found.select(columns).collect(engine="streaming")
    else:
        kept = -(-most // KEPT)
        lengths = found.select(duration).collect(engine="streaming").to_series().to_numpy()
        least = int(numpy.partition(lengths, total - kept - 1)[total - kept - 1])
        del lengths
        width = max((last - first) // BINS + 1, 1)
        own = found.filter(duration > least).select(columns).collect(engine="streaming")
        sums = found.filter(duration <= least).group_by(*_LANE, bin=(col("start_ns") - first) // width)
        table = _with_sums(own, sums.agg(duration.sum().alias("taken")), first, width)
        summed = total - len(own)
    starts, events = (table[name].to_numpy() for name in ("start_ns", "event"))
    if not (nesting.in_order(starts, starts + table["dur_ns"].to_numpy()) and (numpy.diff(events) > 0).all()):
        table = table.sort("start_ns", "dur_ns", "event", descending=[False, True, False])
    return table, total, summed


def _with_sums(own: polars.DataFrame, sums: polars.LazyFrame, first: int, width: int) -> polars.DataFrame:
    """Slices, and a slice for each sum at the beginning of its bin, in lanes of their own."""
    made = sums.select(
        event=polars.lit(-1, polars.Int64),
        kind=polars.lit("kernel").cast(own.schema["kind"]),
        start_ns=first + col("bin") * width,
        **{name: -1 - col(name).fill_null(0) if name == "pid" else col(name) for name in _LANE},
        dur_ns=polars.min_horizontal("taken", polars.lit(width)),
        name=polars.lit(SHORTER, polars.Categorical()),
    ).collect(engine="streaming")
    untold = [polars.lit(None, own.schema[name]).alias(name) for name in (*works.KEYS, "correlation")]
    return polars.concat([own, made.with_columns(untold).select(own.columns).cast(own.schema)])


def packed(trace: Trace, most: int = MOST_SLICES, window: tuple[int, int] | None = None) -> tuple[bytes, Integers]:
    """The slices of a trace, or of a window of it, packed; and by slice the row of its event in the trace, -1 for
    sums.
    """
    waiting.tell(0.0)
    events, total, summed = slices(trace, most, window)
    waiting.tell(_READ)
    with ThreadPoolExecutor(max_workers=_PACKERS) as pool:
        beside = _Beside(pool.submit(works.works, events, trace), pool.submit(odd, trace, window))
        return _packed(events, (total, summed), trace, beside)


def _packed(events: polars.DataFrame, counts: tuple[int, int], trace: Trace, beside: _Beside) -> tuple[bytes, Integers]:
    """Slices packed; `counts` are how many there are, and how many of them are summed."""
    numbers, lanes = by_lane(events)
    start = events["start_ns"].to_numpy()
    starts, ends, shift = nesting.fit(start, start + events["dur_ns"].to_numpy(), numbers)
    waiting.tell(_NESTED)
    order, told = _ordered(numbers, starts, ends, _labelled(lanes, trace.metadata))
    starts, ends = starts[order], ends[order]
    names, codes = _numbered(events["name"].gather(order))
    depth = numpy.zeros(len(order), numpy.int64)
    previous = numpy.zeros(len(order), numpy.int64)
    for lane in told:
        own = slice(lane["first"], lane["first"] + lane["count"])
        depth[own] = depths(starts[own], ends[own])
        lane["depth"] = int(depth[own].max(initial=0)) + 1
        previous[own] = numpy.concatenate([[0], starts[own][:-1]])
    waiting.tell(_ORDERED)
    kinds = list(SLICES)
    work, about = beside.works.result()
    places = numpy.array([kinds.index(kind) if kind in kinds else 0 for kind in KINDS])
    kind = places[events["kind"].to_physical().to_numpy()]
    columns = {
        "start": _column(starts - previous, 4),
        "duration": _column(ends - starts, 4),
        "name": _column(codes, 2 if len(names) <= 1 << 16 else 4),
        "depth": _column(numpy.minimum(depth, _DEEPEST), 1),
        "kind": _column(kind[order], 1),
        "work": _column(work[order], 2),
    }
    launches = works.launches(events, order)
    if launches is not None:
        columns["launch"] = _column(launches, 4)
    told_columns, body = _deflated(columns)
    head = {
        "n": len(order),
        "total": counts[0],
        "summed": counts[1],
        "lanes": told,
        "names": names,
        "kinds": kinds,
        "works": about,
        "odd": beside.odd.result(),
        "marks": marks(trace),
        "shift_us": shift / 1000,
        "columns": told_columns,
    }
    text = json.dumps(head, allow_nan=False).encode()
    rows = events["event"].gather(order).to_numpy().astype(numpy.int64)
    return MAGIC + struct.pack("<I", len(text)) + text + body, rows


def depths(starts: Integers, ends: Integers) -> Integers:
    """How many slices are open around each slice of a lane, whose slices nest and stand by start, outer ones first."""
    begin = 2 * starts
    end = numpy.where(ends > starts, 2 * ends, begin + 1)  # what has no duration ends after it began
    return numpy.arange(len(starts)) - numpy.searchsorted(numpy.sort(end), begin, "right")


def odd(trace: Trace, window: tuple[int, int] | None = None) -> dict[str, Any]:
    """Events that can be drawn as instants alone, values that are no numbers, and names that cannot be shown as they
    are: `total`, and the number for each of `reasons`.
    """
    found = trace.events
    if window is not None:
        found = found.filter(col("start_ns").is_between(*window, closed="left"))
    drawn = col("kind").is_in(SLICES)
    reasons = {
        "without a duration": drawn & col("dur_ns").is_null(),
        "with a negative duration": drawn & (col("dur_ns") < 0),
        "with a value that is no number": col("value").is_not_null() & ~col("value").is_finite(),
    }
    name = NAME.cast(polars.String)
    strange = name.str.contains(_CONTROL) | (name.str.len_chars() > LONGEST_NAME)
    names = found.select("operator", "kernel_name").unique().filter(strange).collect(engine="streaming")
    counts = found.select(**{why: is_odd.sum() for why, is_odd in reasons.items()})
    told = {why: int(count or 0) for why, count in counts.collect(engine="streaming").row(0, named=True).items()}
    told["with a name that is cut or has control characters"] = len(names)
    return {"total": sum(told.values()), "reasons": {why: count for why, count in told.items() if count}}


def marks(trace: Trace) -> list[dict[str, Any]]:
    """The marks of a trace, the first `MOST_MARKS`: name and instant in nanoseconds."""
    found = trace.events.filter(col("kind") == "mark").select(
        name=col("kernel_name").cast(polars.String), at="start_ns"
    )
    return found.head(MOST_MARKS).collect().to_dicts()


def _labelled(lanes: polars.DataFrame, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    threads = metadata.get("thread_names", {})
    made = []
    for lane in lanes.iter_rows(named=True):
        thread = lane["thread_id"]
        label = threads.get(str(thread)) or f"thread {thread or 0:#x}"
        if lane["stream_id"] or thread is None:
            label = lane["stream_name"] or f"{lane['device']} stream {lane['stream_id']}"
        if (lane["pid"] or 0) < 0:
            label = f"{label}: {SHORTER}"
        made.append({"label": str(label), "rank": lane["rank"] or 0, "device": lane["device"]})
    return made


def _ordered(
    numbers: Integers, starts: Integers, ends: Integers, lanes: list[dict[str, Any]]
) -> tuple[Integers, list[dict[str, Any]]]:
    """The order of slices by lane, then start, outer ones first; and the lanes, by rank, with `first` and `count`."""
    by_place = sorted(range(len(lanes)), key=lambda lane: (lanes[lane]["rank"], lanes[lane]["device"], lane))
    place = numpy.empty(len(lanes), numpy.int64)
    place[by_place] = numpy.arange(len(lanes))
    lane = place[numbers]
    few = lane.astype(numpy.uint16) if len(lanes) <= 1 << 16 else lane  # which is sorted much faster
    order = numpy.argsort(few, kind="stable")
    begins, finishes, of = starts[order], ends[order], lane[order]
    edges = numpy.flatnonzero(numpy.diff(of)) + 1
    bounds = [0, *edges.tolist(), len(order)]
    if not all(nesting.in_order(begins[a:b], finishes[a:b]) for a, b in pairwise(bounds)):
        order = numpy.lexsort((-ends, starts, lane))
    counts = numpy.bincount(lane, minlength=len(lanes))
    firsts = numpy.concatenate([[0], counts.cumsum()])
    told = [{**lanes[lane], "first": int(firsts[at]), "count": int(counts[at])} for at, lane in enumerate(by_place)]
    return order, told


def _numbered(names: polars.Series) -> tuple[list[str], Integers]:
    """The distinct names in order of appearance, and by slice the number of its name."""
    distinct = names.unique(maintain_order=True)
    texts = distinct.cast(polars.String).fill_null("").str.slice(0, LONGEST_NAME)
    codes = names.to_physical().cast(polars.Int64).fill_null(-1).to_numpy()
    places = numpy.zeros(int(codes.max(initial=0)) + 2, numpy.int64)  # the last is that of -1
    places[distinct.to_physical().cast(polars.Int64).fill_null(-1).to_numpy()] = numpy.arange(len(distinct))
    return texts.to_list(), places[codes]


def _column(values: Integers, width: int) -> tuple[dict[str, Any], list[bytes]]:
    """What the head says of a column, and its planes as they are."""
    wide = numpy.flatnonzero((values < 0) | (values >= _ESCAPE)) if width == 4 else numpy.empty(0, numpy.int64)
    escapes = [[int(row), int(values[row])] for row in wide]
    narrow = values.copy()
    narrow[wide] = _ESCAPE
    raw = narrow.astype(f"<u{width}").view(numpy.uint8).reshape(len(values), width)
    return {"width": width, "escapes": escapes}, [raw[:, byte].tobytes() for byte in range(width)]


def _plane(raw: bytes) -> bytes:
    """A plane deflated; one whose beginning gets no smaller is stored as it is, in a thirtieth of the time."""
    begin = raw[:_TRIED]
    pays = len(zlib.compress(begin, _LEVEL)) < _PAYS * len(begin)
    return zlib.compress(raw, _LEVEL if pays else 0)


def _deflated(columns: Mapping[str, tuple[dict[str, Any], list[bytes]]]) -> tuple[dict[str, dict[str, Any]], bytes]:
    """What the head says of columns, and their planes, deflated, one after the other."""
    raw = [plane for _, planes in columns.values() for plane in planes]
    with ThreadPoolExecutor(max_workers=_PACKERS) as pool:
        packed_planes = list(pool.map(_plane, raw))
    sizes = iter([len(plane) for plane in packed_planes])
    told = {name: {**about, "sizes": [next(sizes) for _ in planes]} for name, (about, planes) in columns.items()}
    return told, b"".join(packed_planes)
