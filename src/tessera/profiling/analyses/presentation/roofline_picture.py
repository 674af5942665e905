"""The picture of a roofline: slopes of memory levels, flat roofs of dtypes, a mark per kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tessera.profiling.analyses.presentation.result import cell, log_scales
from tessera.profiling.report.bounds import bandwidth
from tessera.target import Ceilings, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#1b6ca8", "#c8553d", "#3c8d53", "#7d5ba6", "#8d6e3c", "#5f6b7a")
_MARKERS = "osD^vP"
_ROOF = "#333333"
_TOUCHING = 1.3
"""Labels of roofs nearer than this factor touch each other."""


class Mark(NamedTuple):
    """A kernel and its work in the picture: FLOP per byte, FLOP per second, and the share of the bound where one is
    known.
    """

    name: str
    dtype: str
    intensity: float
    flop_per_s: float
    efficiency_pct: float | None


def draw(axes: Axes, target: Target, workers: int, marks: Sequence[Mark]) -> None:
    """The ceilings of a device for so many workers, and the marks."""
    intensities = [mark.intensity for mark in marks] or [1.0]
    span = min(0.05, *intensities) / 2, max(100.0, *intensities) * 4
    if target.ceilings is not None:
        _draw_roofs(axes, target.ceilings, workers, span)
    _draw_marks(axes, marks)
    log_scales(axes)
    axes.set_xlim(*span)
    axes.set_xlabel("operational intensity, FLOP per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{target.name}, {workers} worker{'s' if workers > 1 else ''}", fontsize=11, loc="left")
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
    for text, slope in _labels(slopes):
        _label_slope(axes, f"{text} GB/s", 1.15 * span[0], slope / 1e9)
    for peak in peaks.values():
        axes.plot([peak / widest, span[1]], [peak / 1e9] * 2, color=_ROOF, linewidth=1.5, zorder=1)
    for text, peak in _labels(peaks):
        axes.text(span[1] / 1.15, 1.04 * peak / 1e9, f"{text} GFLOP/s", fontsize=7.5, color=_ROOF, ha="right")


def _labels(roofs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Names and values (in 1e9) of roofs, with the highest value; those whose labels would lie on each other are
    one label.
    """
    groups: list[list[tuple[str, float]]] = []
    for name, value in sorted(roofs.items(), key=lambda each: -each[1]):
        if groups and groups[-1][-1][1] < _TOUCHING * value:
            groups[-1].append((name, value))
        else:
            groups.append([(name, value)])
    return [
        (
            ", ".join(name for name, _ in group) + " " + ", ".join(f"{value / 1e9:,.0f}" for _, value in group),
            group[0][1],
        )
        for group in groups
    ]


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


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    dtypes = _in_order(mark.dtype for mark in marks)
    names = _in_order(mark.name for mark in marks)
    for mark in marks:
        share = "" if mark.efficiency_pct is None else f", {mark.efficiency_pct:.0f} %"
        axes.plot(
            [mark.intensity],
            [mark.flop_per_s / 1e9],
            marker=_MARKERS[dtypes.index(mark.dtype) % len(_MARKERS)],
            color=_COLORS[names.index(mark.name) % len(_COLORS)],
            linestyle="none",
            markersize=7,
            zorder=10,
            label=f"{cell(mark.name)}{share}",
        )


def _in_order(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
