"""What traces say: `tessera-prof report`, and a command for each analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tessera import analyze
from tessera.profiling.analyses import kernels
from tessera.profiling.report import report as reports
from tessera.profiling.trace import reading

File = Annotated[Path, typer.Argument(help="A trace, or the folder with the traces of all ranks.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw it: .png, .svg or .pdf.")]
Arch = Annotated[str | None, typer.Option(help="A GPU whose data sheet gives the bounds; else this machine.")]


def report(file: File) -> None:
    """Print what ran, operator by operator: latency, work, bandwidth, and efficiency against the measured ceilings."""
    with reading.reading(file) as found:
        print(reports.of_trace(found))


def roofline(file: File, arch: Arch = None, plot: Plot = None) -> None:
    """Hold kernels against what the hardware can do: arithmetic, and each level of memory."""
    _show(analyze.roofline(file, arch), plot)


def stalls(
    file: File,
    group_by: Annotated[str, typer.Option(help=f"One of {', '.join(kernels.GROUPS)}.")] = "kernel",
    plot: Plot = None,
) -> None:
    """Print where kernels wait for memory."""
    _show(analyze.stalls(file, group_by), plot)


def memory(file: File, plot: Plot = None) -> None:
    """Print bytes: what kernels achieve, what each level of memory moved, and copies with their overlap."""
    _show(analyze.memory(file), plot)


def collectives(
    file: File,
    min_bytes: Annotated[int, typer.Option(help="Leave out what moves fewer bytes.")] = 0,
    plot: Plot = None,
) -> None:
    """Print collectives: how long, how fast, how much beside kernels, and how far apart ranks arrive."""
    _show(analyze.collectives(file, min_bytes), plot)


def power(file: File, plot: Plot = None) -> None:
    """Print power by device: mean, peak, energy, temperature and throttling."""
    _show(analyze.power(file), plot)


def divergence(
    file: File,
    threshold: Annotated[float, typer.Option(help="The least fraction of divergent branches: 0.2 is 20 %.")] = 0.2,
    plot: Plot = None,
) -> None:
    """Print the kernels whose branches diverge."""
    _show(analyze.divergence(file, threshold), plot)


def advise(file: File, arch: Arch = None) -> None:
    """Print what to do about what is slow, each advice with its evidence."""
    _show(analyze.advise(file, arch), None)


def compare(before: File, after: File, plot: Plot = None) -> None:
    """Print what got slower or faster from one trace to another, and what is within the noise."""
    _show(analyze.compare(before, after), plot)


def _show(found: Any, plot: Path | None) -> None:
    print(found)
    if plot is not None:
        print(f"wrote {found.plot(plot)}")
