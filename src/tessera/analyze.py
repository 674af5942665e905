"""What a profile says about the hardware's bounds: `roofline`.

from tessera import analyze
analyze.roofline(trace="trace.json", output="roofline.png")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import ArgumentError
from tessera.target import Ceilings, gpu

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Bound", "Roofline", "RooflinePoint", "roofline"]

_MAIN_MEMORY = ("DRAM", "HBM")
_ACCESS_ORDER = ("copy", "read")
"""Which measured access stands for a level's bandwidth: a copy, since kernels read and write, where there is one."""

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
class Bound:
    """The least seconds that a kernel can take, and the resource that sets it: "compute" or a memory level's name."""

    seconds: float
    resource: str


@dataclass(frozen=True)
class Roofline:
    """Kernels held against a device's ceilings.

    The model: a kernel takes at least as long as its arithmetic at the peak of its dtype and as its bytes at the main
    memory's bandwidth. Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", Communications of the ACM 52(4), 2009.
    """

    points: tuple[RooflinePoint, ...]
    ceilings: Ceilings

    def bound(self, point: RooflinePoint) -> Bound | None:
        """The bound of one kernel; None when the ceilings do not know its dtype and number of workers."""
        peak = self.ceilings.flop_per_s(point.dtype, point.workers)
        memory = main_memory(self.ceilings, point.workers)
        if peak is None or memory is None:
            return None
        level, bandwidth = memory
        arithmetic, traffic = point.flops / peak, point.bytes / bandwidth
        return Bound(arithmetic, "compute") if arithmetic >= traffic else Bound(traffic, level)

    def efficiency_pct(self, point: RooflinePoint) -> float | None:
        """The bound's share of the kernel's time, 0 to 100; above 100 for data that stayed in a cache."""
        bound = self.bound(point)
        return None if bound is None else 100.0 * bound.seconds / point.seconds

    def save(self, path: str | Path) -> Path:
        """Draws the picture, in the format that the name's ending says, and returns its path."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 5.6), dpi=130, layout="constrained")
        _draw(figure.add_subplot(), self)
        target = Path(path)
        figure.savefig(target)
        return target


def main_memory(ceilings: Ceilings, workers: int) -> tuple[str, float] | None:
    """The main memory's name and its bandwidth for `workers`, byte/s; None when it was not measured for that many."""
    for level in _MAIN_MEMORY:
        for access in _ACCESS_ORDER:
            found = ceilings.byte_per_s(level, workers, access)
            if found is not None:
                return level, found
    return None


def roofline(
    trace: str | Path,
    arch: str | None = None,
    output: str | Path | None = None,
    ceilings: Ceilings | None = None,
) -> Roofline:
    """The roofline of the kernels in a Chrome trace that `profiler.timeline` wrote.

    Args:
        trace: the trace file.
        arch: a GPU by name, whose data sheet gives the ceilings; None means this machine's CPU, measured.
        output: where to draw the picture; nothing is drawn without it.
        ceilings: the ceilings to hold the kernels against, instead of looking them up.

    Raises:
        ArgumentError: the file is no trace, holds no kernel with a count of operations, or the device has no ceilings.
    """
    points = read_points(trace)
    if not points:
        hints = ["record it with profiler.session() and write it with profiler.timeline(path)"]
        raise ArgumentError(f"{trace} holds no kernel with operations, bytes and a duration", hints=hints)
    result = Roofline(tuple(points), ceilings or _ceilings(arch))
    if output is not None:
        result.save(output)
    return result


def read_points(trace: str | Path) -> list[RooflinePoint]:
    """The kernels of a Chrome trace, each name and shape once with the median of its durations.

    Raises:
        ArgumentError: the file is no Chrome trace.
    """
    try:
        events = json.loads(Path(trace).read_text())["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{trace} is no Chrome trace: {type(error).__name__} {error}") from error
    groups: dict[tuple[Any, ...], list[float]] = {}
    for event in events:
        key = _kernel_key(event)
        if key is not None:
            groups.setdefault(key, []).append(float(event["dur"]) * 1e-6)
    return [
        RooflinePoint(name, flops, size, sorted(seconds)[len(seconds) // 2], dtype, workers)
        for (name, flops, size, dtype, workers), seconds in groups.items()
    ]


def _kernel_key(event: Mapping[str, Any]) -> tuple[str, float, float, str, int] | None:
    """What tells kernels of a trace apart; None for events that are no kernel with counts."""
    counts = event.get("args", {})
    if event.get("ph") != "X" or not event.get("dur") or not counts.get("flops") or not counts.get("bytes"):
        return None
    name = str(counts.get("operator") or event["name"])
    return name, float(counts["flops"]), float(counts["bytes"]), str(counts["dtype"]), int(counts.get("workers", 1))


def _ceilings(arch: str | None) -> Ceilings:
    if arch is not None:
        found = gpu(arch).ceilings
        if found is None:
            raise ArgumentError(f"no ceilings are known for {arch}")
        return found
    from tessera.backend.llvm import ceilings as measured

    return measured.ceilings()


def _draw(axes: Axes, model: Roofline) -> None:
    workers = max((point.workers for point in model.points), default=max(model.ceilings.worker_counts(), default=1))
    intensities = [point.intensity for point in model.points] or [1.0]
    left, right = min(0.05, *intensities) / 2, max(100.0, *intensities) * 4
    _draw_roofs(axes, model.ceilings, workers, (left, right))
    _draw_points(axes, model)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_xlabel("operational intensity, FLOP per byte of main memory")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{model.ceilings.name}, {workers} thread{'s' if workers > 1 else ''}", fontsize=11, loc="left")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _draw_roofs(axes: Axes, ceilings: Ceilings, workers: int, span: tuple[float, float]) -> None:
    """One roof per dtype: the memory's slope up to the ridge, the dtype's peak beyond it."""
    memory = main_memory(ceilings, workers)
    if memory is None:
        return
    level, bandwidth = memory
    peaks = sorted((row.flop_per_s, row.dtype) for row in ceilings.compute if row.workers == workers)
    for index, (peak, dtype) in enumerate(peaks):
        ridge = peak / bandwidth
        corners = [span[0], ridge, span[1]]
        heights = [span[0] * bandwidth / 1e9, peak / 1e9, peak / 1e9]
        axes.plot(corners, heights, color=_ROOF, linewidth=1.4, zorder=1 + index)
        _label_roof(axes, f"{dtype}: {peak / 1e9:,.0f} GFLOP/s", (span[1], peak / 1e9), (-4, 4))
    _label_roof(axes, f"{level}: {bandwidth / 1e9:,.1f} GB/s", (1.0, bandwidth / 1e9), (-6, 6))


def _label_roof(axes: Axes, text: str, place: tuple[float, float], offset: tuple[int, int]) -> None:
    style = {"textcoords": "offset points", "fontsize": 8, "color": _ROOF, "ha": "right"}
    axes.annotate(text, place, offset, **style)


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
