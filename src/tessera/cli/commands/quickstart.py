"""`tessera quickstart`: four real kernels, tuned, checked and compared on this machine, and a real program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TUNING_S = 5.0
"""Seconds to tune one kernel: eight of them leave the whole run below 90 s on two cores."""


def quickstart(
    folder: Annotated[Path, typer.Option(help="Where to write trace.json, summary.csv and roofline.png.")] = Path(),
    budget: Annotated[float, typer.Option(help="Seconds to tune one kernel.", min=0.1)] = TUNING_S,
) -> None:
    """Tune and check four real kernels on this machine, run a PyTorch model and a program, write a trace and a picture.

    The exit status is 1 when a result differs from its float64 reference.
    """
    from tessera.cli.quickstart.running import run  # which loads torch: --help does not wait for it

    if not run(folder, budget):
        raise typer.Exit(1)
