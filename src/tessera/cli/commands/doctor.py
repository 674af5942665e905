"""`tessera doctor`: what Tessera finds on this machine, and what to do about what it does not find."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what each GPU can do at most, where that is not known yet.")
    ] = False,
    gpu_model: Annotated[
        str,
        typer.Option(
            "--gpu-model",
            help="Instead show what the cost model of this GPU assumes (h100, say, or here for this machine's), and "
            "which choices of schedules hang on it.",
            metavar="GPU",
        ),
    ] = "",
) -> None:
    """Print versions, CPU, threads, caches and GPU, and why what is missing is missing.

    The exit status is 1 when something is missing that Tessera cannot work without.
    """
    if gpu_model:
        from tessera.cli import gpu_model as model_of_gpus

        model_of_gpus.report(gpu_model)
        return
    from tessera.cli import examination  # which loads torch: --help does not wait for it

    if not examination.report(measure):
        raise typer.Exit(1)
