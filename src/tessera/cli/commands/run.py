"""`tessera run`: runs a compiled kernel, or starts a script in several processes that are the ranks of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tessera.errors import ArgumentError

_KERNEL, _SCRIPT = "Kernels", "Scripts"


class _Command(TyperCommand):
    """What follows the name of a script is the script's, options included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script = next((place for place, word in enumerate(args) if word.endswith(".py")), len(args) - 1)
        ctx.obj = args[script + 1 :]
        return super().parse_args(ctx, args[: script + 1])


run = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@run.command(cls=_Command)
def _run(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(help="A script, SCRIPT.py, or what `tessera opt --emit=object` wrote; - is standard input."),
    ] = Path("-"),
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            rich_help_panel=_KERNEL,
            help="One per kernel parameter, in order: FILE.npy, a shape such as 4x5, or a number for a scalar. "
            "An operand given as a shape is random, an output zero. The kernel trusts that shapes fit together.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", rich_help_panel=_KERNEL, help="Where to write each output, in order, as .npy."),
    ] = None,
    seed: Annotated[int, typer.Option(rich_help_panel=_KERNEL, help="The seed of random operands.")] = 0,
    workers: Annotated[
        int, typer.Option(min=1, rich_help_panel=_KERNEL, help="Shares of the work, run one after the other.")
    ] = 1,
    ranks: Annotated[
        int, typer.Option(min=1, rich_help_panel=_SCRIPT, help="Processes that run the script together.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_SCRIPT, help="Threads of each; else its share of the cores.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, rich_help_panel=_SCRIPT, help="How often all ranks start again after a failure.")
    ] = 0,
    pin: Annotated[
        bool, typer.Option(rich_help_panel=_SCRIPT, help="Whether each rank keeps to its share of the cores.")
    ] = True,
) -> None:
    """Run a compiled kernel, print what its outputs are, and write them; or run SCRIPT.py in several processes.

    Files hold fp32 where a kernel takes bf16 or fp8, which numpy does not have; both ways the numbers are converted.

    A script's own arguments follow its name. Each of its processes is a rank of one job. Their lines begin with [RANK];
    when one fails, all end, and the exit code is that of the first that failed.
    """
    if file.suffix == ".py":
        from tessera.sharding.job.launcher import launch
        from tessera.sharding.job.ranks import JobLaunch

        if not file.is_file():
            raise ArgumentError(f"{file} is no file")
        raise typer.Exit(launch(JobLaunch((str(file), *context.obj), ranks, threads, restarts, pin)))
    from tessera.cli.run_kernel import run_kernel

    run_kernel(file, arg or [], output or [], seed, workers)
