"""`tessera opt`: runs passes on a file of IR, and prints it or what a backend makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera import target as targets
from tessera.cli.emission import Emission


def opt(
    file: Annotated[Path, typer.Argument(help="A file of IR; - is the standard input.")] = Path("-"),
    pass_pipeline: Annotated[
        str, typer.Option(help="Passes in order, such as algebra,fuse-kernels{limit=3}; --list-passes names them.")
    ] = "",
    emit: Annotated[Emission, typer.Option(help="What to write; all but ir take Tile IR.")] = Emission.IR,
    gpu: Annotated[str, typer.Option(help=f"The GPU that --emit=triton is for: {', '.join(targets.GPUS)}.")] = "h100",
    kernel: Annotated[
        str, typer.Option(help="The kernel that --emit is about, where the Tile IR of a program has several.")
    ] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to; - is the standard output.")] = Path("-"),
    print_after_each: Annotated[bool, typer.Option(help="Print the module after each pass, to stderr.")] = False,
    list_passes: Annotated[bool, typer.Option("--list-passes", help="Print the passes and end.")] = False,
) -> None:
    """Run passes on a file of IR, and print it or what a backend makes of it.

    The module is verified when it is read and after every pass.

    What inspect("tile") printed, edited or not, runs: tessera opt --emit=object FILE | tessera run - -a 4x5 ... What
    inspect("schedule") printed is lowered first, by --pass-pipeline lower-schedule.
    """
    from tessera.cli import run_passes  # which loads torch: --help does not wait for it

    if list_passes:
        run_passes.list_passes()
    else:
        run_passes.run(file, pass_pipeline, emit, gpu, kernel, output, print_after_each=print_after_each)
