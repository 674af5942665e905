"""Reading traces: of one process from a file in any format, or of several ranks from a folder.

A format is a module of `profiling/readers/` with `matches(path) -> bool` and `read(path) -> Trace`; adding one is
adding that file. Modules without `matches` are parts of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

import polars

from tessera.errors import ProfileError
from tessera.profiling import readers
from tessera.profiling.trace.schema import is_sound
from tessera.profiling.trace.table import Trace, frame
from tessera.system.sources import members

_BROKEN: Final = (polars.exceptions.PolarsError, polars.exceptions.PanicException)


class Reader(Protocol):
    """A module that reads one format."""

    def matches(self, path: Path) -> bool:
        """Whether a file has the format, by its first bytes; never raises because of what stands in it."""

    def read(self, path: Path) -> Trace:
        """The trace in a file. Raises ProfileError for one that is damaged."""


@cache
def _readers() -> Sequence[Reader]:
    return [cast(Reader, module) for module in members(readers) if hasattr(module, "matches")]


def read(path: str | Path, *, ordered: bool = True) -> Trace:
    """The trace in a file, or those of several ranks in a folder as one: by their clocks, each rank with a number.

    The events of all ranks come by start, or unless `ordered` rank by rank, which sorts nothing: over four ranks that
    halves the time of analyses.

    Raises ProfileError (E_PROFILE) where there is no such file, nobody knows its format, or it is damaged.
    """
    place = Path(path)
    if place.is_dir():
        files = files_in(place)
        if not files:
            hint = "give the folder in which each rank wrote its file"
            raise ProfileError(f"{place} has no traces in it", hints=[hint])
        return _joined([_read_file(file) for file in files], ordered)
    if not place.exists():
        raise ProfileError(f"there is no {place}", hints=["profile.parquet(path) writes traces"])
    if not place.is_file():  # a pipe can be read once only, and perhaps never ends
        raise ProfileError(f"{place} is no file", hints=["write what it gives into a file first"])
    return _read_file(place)


@contextlib.contextmanager
def reading(path: str | Path, *, ordered: bool = True) -> Iterator[Trace]:
    """As `read`, for a block that uses the events. Damage that shows only as they are read is a ProfileError, too."""
    trace = read(path, ordered=ordered)
    with examined(path, trace):
        yield trace


@contextlib.contextmanager
def examined(path: str | Path, trace: Trace) -> Iterator[None]:
    """For a block that uses the events of a trace: damage of its file is a ProfileError."""
    try:
        yield
    except _BROKEN as error:
        try:  # the block's own mistake, or the file?
            trace.events.sink_batches(_ignore)
        except _BROKEN as damage:
            raise ProfileError(f"{path} is damaged: {str(damage).splitlines()[0]}") from error
        raise


def _ignore(_: polars.DataFrame) -> None:
    pass


def _read_file(path: Path) -> Trace:
    try:
        reader = _reader_of(path)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error
    if reader is None:
        known = ", ".join(getattr(each, "__name__", "").rpartition(".")[2] for each in _readers())
        raise ProfileError(f"{path} is in no format that is known", hints=[f"known are {known}"])
    found = reader.read(path)
    if not is_sound(found.metadata):
        raise ProfileError(f"{path} is damaged: what it tells of its trace cannot be read")
    return found


def _reader_of(path: Path) -> Reader | None:
    return next((reader for reader in _readers() if reader.matches(path)), None)


def files_in(folder: Path) -> list[Path]:
    """The traces in a folder. A session that is there as columns and as a timeline of the same name counts once."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    columns = {path.stem for path in files if path.suffix == ".parquet"}
    return [path for path in files if _timeline_stem(path) not in columns and _reader_of(path) is not None]


def _timeline_stem(path: Path) -> str | None:
    """The name of a Chrome trace without its endings, None for other files."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(".json").removesuffix(".trace") if name.endswith(".json") else None


def _joined(traces: Sequence[Trace], ordered: bool) -> Trace:
    """Traces of several processes as one. Starts count from the start of the first to begin."""
    first_ranks = traces[0].metadata.get("ranks")
    if all("part" in trace.metadata and trace.metadata["ranks"] == first_ranks for trace in traces):
        return _parts_joined(traces)
    ranks = _renumbered(traces)
    zeros = [_zero_ns(next(iter(own.values()))) for own in ranks]
    known = [zero for zero in zeros if zero is not None]
    first = min(known) if len(known) == len(zeros) else None
    parts = []
    for trace, own, zero in zip(traces, ranks, zeros, strict=True):
        shift = 0 if first is None or zero is None else zero - first
        number = polars.lit(int(next(iter(own))), polars.Int32) if len(own) == 1 else polars.col("rank")
        parts.append(trace.events.with_columns(polars.col("start_ns") + shift, number.alias("rank")))
    sums = {name: sum(trace.metadata.get(name, 0) for trace in traces) for name in ("launched", "recorded", "dropped")}
    metadata = {
        **traces[0].metadata,
        **sums,
        "totals": [total for trace in traces for total in trace.metadata.get("totals", [])],
        "dropped_reasons": _added(trace.metadata.get("dropped_reasons", {}) for trace in traces),
        "ranks": {number: told for own in ranks for number, told in own.items()},
        "thread_names": {
            thread: name for trace in traces for thread, name in trace.metadata.get("thread_names", {}).items()
        },
        "aligned": first is not None,
    }
    lacking = set.intersection(*[set(trace.capability) for trace in traces])
    capability = {name: why for name, why in traces[0].capability.items() if name in lacking}
    events = polars.concat(parts)
    return Trace(events.sort("start_ns", maintain_order=True) if ordered else events, metadata, capability)


def _parts_joined(traces: Sequence[Trace]) -> Trace:
    """The parts that one session spilled. Each tells the sums of all that went before."""
    latest = max(traces, key=lambda trace: trace.metadata["part"])
    plans = {number: plan for trace in traces for number, plan in trace.metadata["plans"].items()}
    events = polars.concat([*[trace.events for trace in traces], _still_open(latest)])
    events = events.sort("start_ns", "dur_ns", descending=[False, True], maintain_order=True)
    metadata = {name: value for name, value in latest.metadata.items() if name != "open_regions"}
    return Trace(events, {**metadata, "plans": plans}, latest.capability)


def _still_open(part: Trace) -> polars.LazyFrame:
    """The regions that had not ended when a part was written, as if they had ended then."""
    told = part.metadata.get("open_regions", [])
    ((rank, own),) = part.metadata["ranks"].items()
    return frame(
        {
            "kind": ["region" for _ in told],
            "kernel_name": [each["name"] for each in told],
            "start_ns": [each["start_ns"] for each in told],
            "dur_ns": [each["end_ns"] - each["start_ns"] for each in told],
            "thread_id": [each["thread"] for each in told],
            "device": ["cpu" for _ in told],
            "rank": [int(rank) for _ in told],
            "pid": [own["pid"] for _ in told],
        }
    ).lazy()


def _renumbered(traces: Sequence[Trace]) -> list[dict[str, dict[str, Any]]]:
    """The ranks of each trace. Where two say that they are the same rank, all are numbered in order of their files."""
    told = [dict(trace.metadata.get("ranks") or {"0": {}}) for trace in traces]
    numbers = [number for own in told for number in own]
    if len(set(numbers)) == len(numbers):
        return told
    counter: Iterator[int] = iter(range(len(numbers)))
    return [{str(next(counter)): about for about in own.values()} for own in told]


def _zero_ns(rank: dict[str, Any]) -> int | None:
    """The trace's zero on the clock of rank 0, as far as that is known."""
    start = rank.get("start_unix_ns")
    return None if start is None else int(start) + int(rank.get("clock_offset_ns") or 0)


def _added(counts: Iterator[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for own in counts:
        for reason, count in own.items():
            total[reason] = total.get(reason, 0) + count
    return total
