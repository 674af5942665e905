"""`tessera-prof top`: what a process runs, again and again."""

from __future__ import annotations

from typing import Annotated

import typer


def top(
    pid: Annotated[int, typer.Option(help="The process; one of your own.")],
    interval: Annotated[float, typer.Option(help="Seconds that each picture is about.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
) -> None:
    """Watch what a process runs: its kernels, hottest first, and what the system says of it."""
    from tessera.cli.profiling.watching import watch  # which loads torch: --help does not wait for it

    watch(pid, interval, once)
