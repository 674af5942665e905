"""Operators and tiles of a profile: what `graph.profile` measured, as rows, as a table and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy

from tessera.profiling.recording import instrumentation
from tessera.profiling.report.labels import kernel_label, operator_name
from tessera.profiling.tiles.tiles import ClockCost, Tiles
from tessera.profiling.trace.schema import Record
from tessera.system.notebooks import ShownAsText

if TYPE_CHECKING:
    import polars

NO_TILES: Final = "calls of libraries, and transforms, have no tiles that a schedule names"
NOT_TIMED: Final = "the kernel ran as a build that does not time its tiles"
NO_WORK: Final = "the kernel had no tile to compute"
LOST_RECORDS: Final = "some calls of the kernel were dropped from the profile: raise TESSERA_PROFILE_RECORDS"
NO_TIME: Final = "the clock saw no time pass"
COLLECTIVE: Final = "a collective computes no tiles"
ALONE: Final = "a process that is alone sends nothing"

OF_TILES: Final = ("tiles", "occupancy_pct", "clock_pct")
"""Fields of a row that only tiles tell."""

MOST_CLOCK_PCT: Final = 10.0
"""Where reading clocks makes up more of a tile's time, its line says so."""

StepTiles = Mapping[int, Sequence[Tiles | None]]
"""By a plan's number, what the tiles of each of its steps took; None for calls of libraries."""


@dataclass(frozen=True, slots=True)
class TileRow:
    """All calls of one kernel, or of one collective. What nobody knows is None; `unavailable` says why, by field.

    `latency_us` is the median time of a tile, or of a call where `tiles` is None; `fastest_us` and `slowest_us` go with
    it. `tiles` is how many a call computes, on all workers. `call_us` is the mean time of a call. `occupancy_pct` is
    the share of its workers' time in calls that they spent in tiles, 0-100: the rest is waiting for each other, packing
    that workers share, and starting. `clock_pct` is the share of tiles' time that reading the clock took, 0-100.
    `bandwidth_gbps` and `gflop_per_s` are a call's `bytes` (operands read once, results written once) and `flops`, by
    the compiler's facts, over its time; of a collective, the bytes that it reduces over its latency.
    """

    label: str
    operator: str
    kernel_name: str
    calls: int
    call_us: float
    latency_us: float
    fastest_us: float
    slowest_us: float
    tiles: int | None = None
    occupancy_pct: float | None = None
    clock_pct: float | None = None
    bandwidth_gbps: float | None = None
    gflop_per_s: float | None = None
    workers: int = 1
    dtype: str = ""
    schedule: str = ""
    fused: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    flops: float | None = None
    bytes: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TileProfile(ShownAsText):
    """What `graph.profile` gives: `rows` in the order in which operators first ran, and what timing a tile costs.
    `notes` say what is not in the rows. Printing it shows the text.
    """

    rows: tuple[TileRow, ...]
    clock: ClockCost
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> polars.DataFrame:
        """The rows as a table: one column a field, but for `unavailable`."""
        import polars

        columns = [name for name in TileRow.__dataclass_fields__ if name != "unavailable"]
        rows = [asdict(row) for row in self.rows]
        figures = ("occupancy_pct", "clock_pct", "bandwidth_gbps", "gflop_per_s", "flops", "bytes")
        types = dict.fromkeys(figures, polars.Float64())
        return polars.DataFrame(
            {name: [row[name] for row in rows] for name in columns},
            schema_overrides={**types, "tiles": polars.Int64(), "rewrites": polars.List(polars.String)},
        )

    def __str__(self) -> str:
        lines = _aligned([[row.label, *_figures(row)] for row in self.rows]) or ["nothing ran"]
        if any(row.clock_pct is not None for row in self.rows):
            whole, inside = f"{self.clock.whole_ns:.0f} ns", f"{self.clock.inside_ns:.0f} ns"
            lines += ["", f"reading the clock takes {whole} a tile, of which its latency contains {inside}"]
        return "\n".join([*lines, *_trace(self.rows), *self.notes])


def tell_sessions(rows: Sequence[TileRow]) -> None:
    """Has the traces of the sessions that are on tell these rows, so that a viewer shows tiles beside the code."""
    for recording in list(instrumentation.recordings):
        recording.tiles += [asdict(row) for row in rows if row.tiles is not None]


def rows_of(records: Iterable[Record], tiles: StepTiles, clock: ClockCost, ns_per_tick: float) -> tuple[TileRow, ...]:
    """The rows of a session's records, in order of each one's first. Kernels are one where operators, dtype, schedule,
    shapes, workers and rewrites are.
    """
    alike: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.kind == "kernel":
            what = record.fused or record.operator, record.dtype, record.shapes, record.backend
            # The interpreter, a device of its own, runs on the CPU, too.
            how = record.schedule, record.workers, record.rewrites, record.device, type(_tiles_of(record, tiles))
            alike.setdefault((what, how), []).append(record)
        elif record.kind == "collective":
            which = record.collective_type, record.collective_axis
            alike.setdefault((which, record.collective_bytes, record.stream_name), []).append(record)
    return tuple(
        _collective_row(each) if each[0].kind == "collective" else _kernel_row(each, tiles, clock, ns_per_tick)
        for each in alike.values()
    )


def _collective_row(records: Sequence[Record]) -> TileRow:
    first, taken = records[0], [record.duration_us for record in records]
    latency_us, alone = float(numpy.median(taken)), first.collective_algorithm == "identity"
    nbytes = None if alone else first.collective_bytes or 0.0
    bandwidth = nbytes / latency_us / 1e3 if nbytes is not None and latency_us else None
    operator = first.collective_type or first.kernel_name
    unavailable = dict.fromkeys((*OF_TILES, "flops", "gflop_per_s"), COLLECTIVE)
    if nbytes is None:
        unavailable["bytes"] = ALONE
    if bandwidth is None:
        unavailable["bandwidth_gbps"] = ALONE if alone else NO_TIME
    return TileRow(
        label=f"{operator_name(operator)}[{first.collective_axis or ('identity' if alone else 'world')}]",
        operator=operator,
        kernel_name=first.kernel_name,
        calls=len(records),
        call_us=sum(taken) / len(taken),
        latency_us=latency_us,
        fastest_us=min(taken),
        slowest_us=max(taken),
        bytes=nbytes,
        bandwidth_gbps=bandwidth,
        unavailable=unavailable,
    )


def _kernel_row(records: Sequence[Record], tiles: StepTiles, clock: ClockCost, ns_per_tick: float) -> TileRow:
    steps = {(record.plan_id, record.step_id): record for record in records}
    known = [_tiles_of(record, tiles) for record in steps.values()]
    times = [each for each in known if each is not None]
    row = _call_row(records)
    if records[0].backend == "library":
        why = NO_TILES
    elif len(times) < len(known):
        why = NOT_TIMED
    elif not any(each.count for each in times):
        why = NO_WORK
    else:
        return _with_tiles(row, times, clock, (times[0].ns_per_tick or ns_per_tick) / 1000)
    return replace(row, unavailable={**row.unavailable, **dict.fromkeys(OF_TILES, why)})


def _tiles_of(record: Record, tiles: StepTiles) -> Tiles | None:
    steps = tiles.get(record.plan_id, ())
    return steps[record.step_id] if record.step_id < len(steps) else None


def _call_row(records: Sequence[Record]) -> TileRow:
    """What the calls of a kernel alone tell."""
    first, taken = records[0], [record.duration_us for record in records]
    bandwidth_gbps, gflop_per_s = _rate(first.bytes, taken), _rate(first.flops, taken)
    unknown = [
        name for name, rate in (("bandwidth_gbps", bandwidth_gbps), ("gflop_per_s", gflop_per_s)) if rate is None
    ]
    return TileRow(
        label=kernel_label(first.fused or (first.operator,), first.schedule),
        operator=first.operator,
        kernel_name=first.kernel_name,
        calls=len(records),
        call_us=sum(taken) / len(taken),
        latency_us=float(numpy.median(taken)),
        fastest_us=min(taken),
        slowest_us=max(taken),
        workers=first.workers,
        dtype=first.dtype,
        schedule=first.schedule,
        fused=first.fused,
        rewrites=first.rewrites,
        shapes=first.shapes,
        flops=first.flops,
        bytes=first.bytes,
        bandwidth_gbps=bandwidth_gbps,
        gflop_per_s=gflop_per_s,
        unavailable=dict.fromkeys(unknown, NO_TIME),
    )


def _rate(count: float | None, taken_us: Sequence[float]) -> float | None:
    """So much in the mean of these times, in thousand millions a second; None where the clock saw no time pass."""
    total_us = sum(taken_us)
    return count * len(taken_us) / total_us / 1e3 if count is not None and total_us else None


def _with_tiles(row: TileRow, times: Sequence[Tiles], clock: ClockCost, us_per_tick: float) -> TileRow:
    """The row of calls with what their tiles took."""
    count, calls = sum(each.count for each in times), sum(each.calls for each in times)
    total_us = us_per_tick * sum(each.total for each in times)
    busy = [each.busy for each in times if each.busy is not None]
    unavailable = {name: why for each in times for name, why in each.unavailable.items()}
    if calls != row.calls:
        unavailable["occupancy_pct"] = LOST_RECORDS
    in_calls_us = max(row.workers * row.calls * row.call_us, 1e-3)
    occupancy_pct = 100 * us_per_tick * sum(busy) / in_calls_us
    clock_pct = min(100.0, 100 * count * clock.inside_ns / 1000 / max(total_us, 1e-3))
    return replace(
        row,
        latency_us=us_per_tick * float(numpy.median(numpy.concatenate([each.durations() for each in times]))),
        fastest_us=us_per_tick * min(each.shortest for each in times if each.shortest is not None),
        slowest_us=us_per_tick * max(each.longest for each in times),
        tiles=round(count / calls),
        unavailable={**row.unavailable, **unavailable},
        occupancy_pct=None if "occupancy_pct" in unavailable else occupancy_pct,
        clock_pct=None if "clock_pct" in unavailable else clock_pct,
    )


def _trace(rows: Sequence[TileRow]) -> list[str]:
    """The fusion trace: the rules behind each kernel, in the order in which they fired."""
    rewritten = [["", row.label, ", ".join(row.rewrites)] for row in rows if row.rewrites]
    return ["", "rewrites", *_aligned(rewritten)] if rewritten else []


def _figures(row: TileRow) -> list[str]:
    figures = [f"latency={_short(row.latency_us)}µs"]
    if row.bandwidth_gbps is not None and row.tiles is None:
        big = row.bandwidth_gbps >= 1000
        figures.append(
            f"bandwidth={_short(row.bandwidth_gbps / 1000)}TB/s"
            if big
            else f"bandwidth={_short(row.bandwidth_gbps)}GB/s"
        )
    if row.occupancy_pct is not None:
        figures.append(f"occupancy={row.occupancy_pct:.0f}%")
    if row.tiles is not None:
        figures.append(f"tiles={row.tiles}")
    if row.clock_pct is not None and row.clock_pct > MOST_CLOCK_PCT:
        figures.append(f"clock={row.clock_pct:.0f}%")
    return figures


def _short(value: float) -> str:
    """Two significant digits or more."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    padded = ["   ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)) for line in lines]
    return [line.rstrip() for line in padded]
