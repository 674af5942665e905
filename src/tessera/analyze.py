"""What a profile says about the hardware's bounds: `roofline`.

from tessera import analyze
analyze.roofline(trace="trace.json", output="roofline.png")
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.doors.copying import CopyBound, copy_bound
from tessera.errors import ArgumentError
from tessera.profiling.roofline import ACCESSES, Bound, bound
from tessera.profiling.schema import Record, StepFacts
from tessera.target import Ceilings, Target, detect, gpu

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Bound",
    "CopyBound",
    "Roofline",
    "RooflinePoint",
    "bandwidth",
    "copy_bound",
    "machine",
    "point_of",
    "read_points",
    "roofline",
]

_COLORS = ("#1b6ca8", "#c8553d", "#3c8d53", "#7d5ba6", "#8d6e3c", "#5f6b7a")
_MARKERS = "osD^vP"
_ROOF = "#333333"


@dataclass(frozen=True)
class RooflinePoint:
    """One kernel: the algorithm's floating-point operations and bytes per call, and the seconds of a call.

    Bytes are the operands read once and the results written once. `dtype` names the arithmetic's element type.
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    dtype: str
    workers: int = 1

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


@dataclass(frozen=True)
class Roofline:
    """Kernels held against the ceilings of a device; the model is `tessera.profiling.roofline`'s.

    `target` has ceilings, else the bounds are None.
    """

    points: tuple[RooflinePoint, ...]
    target: Target

    def bound(self, point: RooflinePoint) -> Bound | None:
        """The least seconds that the ceilings allow and the resource that sets them; None where none were measured."""
        if self.target.ceilings is None:
            return None
        facts = StepFacts(point.name, point.name, point.flops, point.bytes, point.dtype)
        return bound(facts, point.workers, self.target.ceilings, self.target.memory)

    def efficiency_pct(self, point: RooflinePoint) -> float | None:
        """The bound's share of the kernel's time, 0 to 100."""
        least = self.bound(point)
        return None if least is None else 100.0 * least.seconds / point.seconds

    def save(self, path: str | Path) -> Path:
        """Draws the picture, in the format that the name's ending says, and returns its path."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 5.6), dpi=130, layout="constrained")
        _draw(figure.add_subplot(), self)
        target = Path(path)
        figure.savefig(target)
        return target


def roofline(
    trace: str | Path,
    arch: str | None = None,
    output: str | Path | None = None,
    target: Target | None = None,
) -> Roofline:
    """The roofline of the kernels in a Chrome trace that `profiler.timeline` wrote.

    Args:
        trace: the trace file.
        arch: a GPU by name, whose data sheet gives the ceilings; None means this machine's CPU, measured.
        output: where to draw the picture; nothing is drawn without it.
        target: a device with ceilings, instead of looking one up.

    Raises:
        ArgumentError: the file is no trace, holds no kernel with a count of operations, or the device has no ceilings.
    """
    points = read_points(trace)
    if not points:
        hints = ["record it with profiler.session() and write it with profiler.timeline(path)"]
        raise ArgumentError(f"{trace} holds no kernel with operations, bytes and a duration", hints=hints)
    result = Roofline(tuple(points), target or _target(arch))
    if output is not None:
        result.save(output)
    return result


def point_of(record: Record) -> RooflinePoint | None:
    """The point of one profile record; None for records that are no kernel, or whose work is unknown."""
    if record.kind != "kernel" or not record.flops or not record.bytes or not record.duration_us:
        return None
    seconds = 1e-6 * record.duration_us
    return RooflinePoint(record.operator, record.flops, record.bytes, seconds, record.dtype, record.workers)


def read_points(trace: str | Path) -> list[RooflinePoint]:
    """The kernels of a Chrome trace, one point per kernel and work with the median of its durations.

    Raises:
        ArgumentError: the file is no Chrome trace.
    """
    try:
        events = list(json.loads(Path(trace).read_text())["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{trace} is no Chrome trace: {type(error).__name__} {error}") from error
    return _median_points(point for event in events if (point := _point_of_event(event)))


def _point_of_event(event: Mapping[str, Any]) -> RooflinePoint | None:
    counts = event.get("args", {})
    if event.get("ph") != "X" or not event.get("dur") or not counts.get("flops") or not counts.get("bytes"):
        return None
    return RooflinePoint(
        name=str(event["name"]),
        flops=float(counts["flops"]),
        bytes=float(counts["bytes"]),
        seconds=1e-6 * float(event["dur"]),
        dtype=str(counts.get("dtype", "")),
        workers=int(counts.get("workers", 1)),
    )


def _median_points(points: Iterable[RooflinePoint]) -> list[RooflinePoint]:
    groups: dict[RooflinePoint, list[float]] = {}
    for point in points:
        groups.setdefault(replace(point, seconds=0.0), []).append(point.seconds)
    return [replace(point, seconds=statistics.median(seconds)) for point, seconds in groups.items()]


def _target(arch: str | None) -> Target:
    if arch is not None:
        found = gpu(arch)
        if found.ceilings is None:
            raise ArgumentError(f"no ceilings are known for {arch}")
        return found
    return machine()


def machine() -> Target:
    """This machine's CPU with its ceilings: remembered ones, else measured now, which takes two seconds or so."""
    from tessera.backend.llvm import ceilings

    return detect().with_ceilings(ceilings.measured())


def bandwidth(ceilings: Ceilings, level: str, workers: int) -> float:
    """A memory level's ceiling for `workers`, byte/s, as bounds use it: the best access that kernels make.

    Raises ValueError where there is none.
    """
    rows = (row for row in ceilings.memory if (row.level, row.workers) == (level, workers))
    return max(row.byte_per_s for row in rows if row.access in ACCESSES)


def _draw(axes: Axes, model: Roofline) -> None:
    ceilings = model.target.ceilings
    counts = [point.workers for point in model.points] or list(ceilings.worker_counts() if ceilings else ())
    workers = max(counts, default=1)
    intensities = [point.intensity for point in model.points] or [1.0]
    span = min(0.05, *intensities) / 2, max(100.0, *intensities) * 4
    if ceilings is not None:
        _draw_roofs(axes, ceilings, workers, span)
    _draw_points(axes, model)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_xlabel("operational intensity, FLOP per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{model.target.name}, {workers} worker{'s' if workers > 1 else ''}", fontsize=11, loc="left")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _draw_roofs(axes: Axes, ceilings: Ceilings, workers: int, span: tuple[float, float]) -> None:
    """A slope per memory level up to the highest peak, and a flat roof per dtype from the nearest level's slope on."""
    levels = dict.fromkeys(row.level for row in ceilings.memory if row.workers == workers)
    slopes = {level: bandwidth(ceilings, level, workers) for level in levels}
    peaks = {row.dtype: row.flop_per_s for row in ceilings.compute if row.workers == workers}
    if not slopes or not peaks:
        return
    highest, widest = max(peaks.values()), max(slopes.values())
    for level, slope in slopes.items():
        outermost = level == list(slopes)[-1]
        ends = [span[0], highest / slope]
        heights = [x * slope / 1e9 for x in ends]
        axes.plot(ends, heights, color=_ROOF, linewidth=1.5 if outermost else 0.6, zorder=1)
        _label_slope(axes, f"{level} {slope / 1e9:,.0f} GB/s", 1.15 * span[0], slope / 1e9)
    for dtype, peak in peaks.items():
        axes.plot([peak / widest, span[1]], [peak / 1e9] * 2, color=_ROOF, linewidth=1.5, zorder=1)
        label = f"{dtype} {peak / 1e9:,.0f} GFLOP/s"
        axes.text(span[1] / 1.15, 1.04 * peak / 1e9, label, fontsize=7.5, color=_ROOF, ha="right")


def _label_slope(axes: Axes, text: str, x: float, slope: float) -> None:
    """Writes along the line y = slope * x, above it, beginning at x."""
    angle = math.degrees(math.atan(slope))
    axes.text(
        x,
        1.12 * slope * x,
        text,
        rotation=angle,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=7.5,
        color=_ROOF,
    )


def _draw_points(axes: Axes, model: Roofline) -> None:
    dtypes = _in_order(point.dtype for point in model.points)
    names = _in_order(point.name for point in model.points)
    for point in model.points:
        efficiency = model.efficiency_pct(point)
        share = "" if efficiency is None else f", {efficiency:.0f} %"
        axes.plot(
            [point.intensity],
            [point.flop_per_s / 1e9],
            marker=_MARKERS[dtypes.index(point.dtype) % len(_MARKERS)],
            color=_COLORS[names.index(point.name) % len(_COLORS)],
            linestyle="none",
            markersize=7,
            zorder=10,
            label=f"{point.name} {point.dtype}{share}",
        )


def _in_order(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
