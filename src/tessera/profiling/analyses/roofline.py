"""Kernels against the ceilings of a device: intensity, achieved rate, and the share of the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.durations import histograms_of, kernel_bins
from tessera.profiling.analyses.presentation.result import Analysis, drawn, svg, work
from tessera.profiling.analyses.presentation.roofline_picture import Mark, draw
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.report.bounds import ACCESSES, Bound, bound
from tessera.profiling.report.operators import latency, told_totals
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.schema import Record
from tessera.profiling.trace.table import Trace
from tessera.target import Ceilings, Target, detect, gpu

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "kernel": "Kernel",
    "dtype": "Dtype",
    "work": "Work",
    "workers": "Workers",
    "calls": "Calls",
    "median_us": "Median(us)",
    "share_pct": "Share(%)",
    "intensity": "FLOP/byte",
    "gflop_per_s": "GFLOP/s",
    "achieved_gbps": "GB/s",
    "binding": "Bound by",
    "efficiency_pct": "Of the bound(%)",
}
ABOVE_PCT: Final = 101.0
"""Share of the bound from which a kernel was faster than what was measured, and not by a digit's rounding."""
WHY_ABOVE: Final = "measured on a busy machine, or with operands that lay in a nearer cache than their size says"

_OPTIONAL: Final = ("workers", "work", "achieved_gbps", "calls", "intensity", "gflop_per_s")
_SCHEMA: Final = {
    "kernel": polars.String,
    "dtype": polars.String,
    "work": polars.String,
    "workers": polars.Int64,
    "calls": polars.Int64,
    "median_us": polars.Float64,
    "share_pct": polars.Float64,
    "flops": polars.Float64,
    "bytes": polars.Float64,
    "intensity": polars.Float64,
    "gflop_per_s": polars.Float64,
    "achieved_gbps": polars.Float64,
    "binding": polars.String,
    "efficiency_pct": polars.Float64,
}


@dataclass(frozen=True)
class RooflinePoint:
    """One kernel: the algorithm's floating-point operations and bytes per call, the seconds of a call, and how many
    calls these stand for.

    Bytes are the operands read once and the results written once. `dtype` names the arithmetic's element type.
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    dtype: str
    workers: int = 1
    calls: int = 1

    @property
    def intensity(self) -> float:
        """Operational intensity, FLOP per byte."""
        return self.flops / self.bytes

    @property
    def flop_per_s(self) -> float:
        """Achieved FLOP/s."""
        return self.flops / self.seconds

    @property
    def byte_per_s(self) -> float:
        """Achieved byte/s, counting each operand and result once."""
        return self.bytes / self.seconds


@dataclass(frozen=True, repr=False)
class Roofline:
    """Kernels held against the ceilings of a device; the model is `tessera.profiling.report.bounds`'s.

    `target` has ceilings, else the bounds are None. Prints as a table; iterating gives its rows.
    """

    points: tuple[RooflinePoint, ...]
    target: Target
    notes: tuple[str, ...] = ()

    def bound(self, point: RooflinePoint) -> Bound | None:
        """The least seconds that the ceilings allow and the resource that sets them; None where none were measured."""
        if self.target.ceilings is None:
            return None
        facts = StepFacts(point.name, point.name, point.flops, point.bytes, point.dtype)
        return bound(facts, self.workers(point), self.target.ceilings, self.target.memory)

    def workers(self, point: RooflinePoint) -> int:
        """Whose ceilings hold for a point: those of as many threads on a CPU, of the whole device on a GPU."""
        return point.workers if self.target.kind == "cpu" else self.target.cores

    def efficiency_pct(self, point: RooflinePoint) -> float | None:
        """The bound's share of the kernel's time, 0 to 100."""
        least = self.bound(point)
        return None if least is None else 100.0 * least.seconds / point.seconds

    def to_polars(self) -> polars.DataFrame:
        """A row per point, what takes most time first. Bytes and FLOPs are those of one call."""
        whole = sum(point.seconds * point.calls for point in self.points)
        rows = [self._row(point, whole) for point in self.points]
        return polars.DataFrame(rows, schema=_SCHEMA, orient="row").sort(
            "share_pct", "kernel", descending=[True, False]
        )

    def _row(self, point: RooflinePoint, whole: float) -> tuple[Any, ...]:
        least = self.bound(point)
        return (
            point.name,
            point.dtype,
            work(point.flops, point.bytes),
            point.workers,
            point.calls,
            1e6 * point.seconds,
            100 * point.seconds * point.calls / whole,
            point.flops,
            point.bytes,
            point.intensity,
            point.flop_per_s / 1e9,
            point.byte_per_s / 1e9,
            least.binding if least is not None else None,
            self.efficiency_pct(point),
        )

    def analysis(self) -> Analysis:
        """The rows with their headings and notes."""
        table = self.to_polars()
        unknown = "the ceilings of this device are not known for so many workers; `tessera quickstart` measures them"
        missing = {
            name: unknown for name in ("binding", "efficiency_pct") if table[name].null_count() == len(table) > 0
        }
        notes = (*self.notes, *self.above(), *self.doubts())
        return Analysis(f"Roofline, {self.target.name}", table, _HEADINGS, notes, missing, optional=_OPTIONAL)

    def above(self) -> tuple[str, ...]:
        """A sentence on the points that lie above the measured ceiling; none where there are none."""
        return above_of([self.efficiency_pct(point) or 0.0 for point in self.points])

    def doubts(self) -> tuple[str, ...]:
        """A sentence on the ceilings that may be too low; none where there are none."""
        return doubts_of(self.target.ceilings)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.analysis())

    def __str__(self) -> str:
        return str(self.analysis())

    __repr__ = __str__

    def plot(self, path: str | Path) -> Path:
        """Draws the picture, in the format that the name's ending says, and returns its path.

        Raises ArgumentError (E_ARGUMENT) for a format that there is not, ProfileError (E_PROFILE) where the file cannot
        be written.
        """
        return drawn(self._draw, path)

    def _repr_html_(self) -> str:
        """The picture, and the rows below it."""
        return f"<div>{svg(self._draw)}{self.analysis()._repr_html_()}</div>"

    def _draw(self, figure: Figure) -> None:
        counts = [self.workers(point) for point in self.points]
        if not counts and self.target.ceilings is not None:
            counts = list(self.target.ceilings.worker_counts())
        marks = [
            Mark(
                f"{point.name} {point.dtype}, {work(point.flops, point.bytes)}",
                point.dtype,
                point.intensity,
                point.flop_per_s,
                self.efficiency_pct(point),
            )
            for point in self.points
        ]
        draw(figure.add_subplot(), self.target, max(counts, default=1), marks)


def above_of(shares_pct: Sequence[float]) -> tuple[str, ...]:
    """A sentence on kernels above the measured ceiling, by their shares of the bound; none where there are none."""
    count = sum(share > ABOVE_PCT for share in shares_pct)
    return (f"above the measured ceiling: {count} of {len(shares_pct)} kernels; {WHY_ABOVE}",) if count else ()


def doubts_of(ceilings: Ceilings | None) -> tuple[str, ...]:
    """A sentence on what may be too low of ceilings; none where nothing is in doubt."""
    if ceilings is None or not ceilings.in_doubt:
        return ()
    names = ", ".join(ceilings.in_doubt)
    return (f"ceilings of {ceilings.date[:10]}: the machine was busy, and these may be too low: {names}",)


SUMS: Final = "of these kernels only sums were kept: medians are means of the calls after the first"
"""What is to be said where a session kept sums alone."""


def roofline(trace: Trace, target: Target) -> Roofline:
    """The kernels whose operations and bytes are known. Raises ArgumentError where there is none."""
    found = points(trace)
    if not found:
        hints = ["record it with profile.session(): Tessera's kernels carry their FLOPs and bytes"]
        raise ArgumentError("the trace holds no kernel with operations, bytes and a duration", hints=hints)
    return Roofline(tuple(found), target, (*_notes(trace, found), *_elsewhere(trace, target)))


def points(trace: Trace) -> list[RooflinePoint]:
    """One point per kernel and work with the median of its durations, what takes most time first; of kernels whose sums
    alone were kept, with the mean of the calls after the first.
    """
    known = kernel_bins(trace).filter((col("flops") > 0) & (col("bytes") > 0))
    works = histograms_of(known, ("kernel", "flops", "bytes", "dtype", "workers"))
    found = [
        RooflinePoint(name, flops, nbytes, 1e-9 * each.median_ns, dtype or "", workers or 1, each.calls)
        for (name, flops, nbytes, dtype, workers), each in works.items()
    ]
    found += [
        RooflinePoint(each.operator, each.flops, each.bytes, latency(each), each.dtype, each.workers, each.calls)
        for each in told_totals(trace)
        if each.flops > 0 and each.bytes > 0 and each.seconds > 0
    ]
    return sorted(found, key=lambda point: -point.seconds * point.calls)


def point_of(record: Record) -> RooflinePoint | None:
    """The point of one profile record; None for records that are no kernel, or whose work is unknown."""
    if record.kind != "kernel" or not record.flops or not record.bytes or not record.duration_us:
        return None
    seconds = 1e-6 * record.duration_us
    return RooflinePoint(record.operator, record.flops, record.bytes, seconds, record.dtype, record.workers)


def _notes(trace: Trace, found: Sequence[RooflinePoint]) -> tuple[str, ...]:
    """How many kernels are left out, since their work is unknown; and of how many sums alone are known."""
    summed = sum(each.calls for each in told_totals(trace))
    timed = kernels.whereabouts(trace).count + summed
    left_out = timed - sum(point.calls for point in found)
    notes = (f"{left_out:,} of {timed:,} kernels have no count of operations or bytes",) if left_out else ()
    return (*notes, SUMS) if summed else notes


def _elsewhere(trace: Trace, target: Target) -> tuple[str, ...]:
    """A sentence where the kernels ran on a device of another kind than the bounds are of."""
    places = {"cpu" if device == "cpu" else "gpu" for device in kernels.whereabouts(trace).devices}
    if not places or places == {"cpu" if target.kind == "cpu" else "gpu"}:
        return ()
    name = (trace.metadata.get("target") or {}).get("name") or "another device"
    ran = f"a CPU ({name})" if places == {"cpu"} else "a GPU"
    return (
        f"these kernels ran on {ran}, the bounds are those of {target.name}: shares say how far this run was from what "
        "that device could do, not how good the kernels are",
    )


def target_of(arch: str) -> Target:
    """The GPU of a name with its data sheet. Raises ArgumentError for one whose ceilings nobody published."""
    found = gpu(arch)
    if found.ceilings is None:
        raise ArgumentError(f"no ceilings are known for {arch}")
    return found


def own_target(trace: Trace) -> Target:
    """The CPU that recorded the trace, with the ceilings that the trace holds, else those of this machine, which are
    measured now where they are not known. Raises ArgumentError for a trace of another machine that holds none.
    """
    found = _cpu_of(trace)
    return found if found.ceilings is not None else machine()


def known_target(trace: Trace) -> Target | None:
    """The CPU that recorded the trace, with its ceilings where they are known; None for the trace of another device."""
    try:
        return _cpu_of(trace)
    except ArgumentError:
        return None


def _cpu_of(trace: Trace) -> Target:
    """Raises ArgumentError where nothing is known of the CPU that recorded a trace, and where kernels ran on a GPU."""
    hints = ['arch= names a GPU ("sm90"), whose data sheet counts', "target= takes any device with its ceilings"]
    found = recorded_target(trace.metadata)
    if found is None:
        name = trace.metadata["target"].get("name") or "another device"
        raise ArgumentError(
            f"the trace was recorded on {name}, this is {detect().name}, and the trace holds no ceilings",
            hints=["`tessera quickstart` measures them there: traces recorded afterwards hold them", *hints],
        )
    others = sorted(kernels.whereabouts(trace).devices - {"cpu"})
    if others:
        raise ArgumentError(f"kernels of this trace ran on {', '.join(others)}", hints=hints)
    return found


def machine(*, again: bool = False) -> Target:
    """This machine's CPU with its ceilings: remembered ones, else measured now, which takes two seconds or so. `again`
    measures in any case; of what was measured before and now the greater figures are kept.
    """
    from tessera.backend.llvm import ceilings

    return detect().with_ceilings(ceilings.measured(again=again))


def bandwidth(ceilings: Ceilings, level: str, workers: int) -> float:
    """A memory level's ceiling for `workers`, byte/s, as bounds use it: the best access that kernels make.

    Raises ValueError where there is none.
    """
    rows = (row for row in ceilings.memory if (row.level, row.workers) == (level, workers))
    return max(row.byte_per_s for row in rows if row.access in ACCESSES)
