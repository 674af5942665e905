"""`tessera-prof html`: a trace as a report in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.errors import ProfileError
from tessera.viewer import one_file
from tessera.viewer.runs import Run, runs_at

File = Annotated[Path, typer.Argument(help="A trace, or the folder with the traces of all ranks.")]


def html(
    trace: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; else beside the trace.")
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="A second trace, to compare with.")] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out host names, process numbers and Python stacks.")
    ] = False,
    with_code: Annotated[
        bool, typer.Option("--code", help="Have the compiler make the kernels' code again; takes seconds.")
    ] = False,
) -> None:
    """Write a trace as a report in one file, which any browser opens without a server."""
    runs = [_one(path) for path in (trace, compare) if path is not None]
    path = one_file.write(runs, output or trace.with_name(f"{trace.stem}.html"), redact=redact, with_code=with_code)
    told = "" if redact else "; it names hosts, and source files where stacks were recorded (--redact leaves them out)"
    print(f"wrote {path}{told}")


def _one(path: Path) -> Run:
    found = runs_at(path)
    if len(found) > 1:
        names = ", ".join(run.name for run in found[:3])
        raise ProfileError(f"{path} holds {len(found)} runs: {names}", hints=["name one of them", "tessera-prof view"])
    return found[0]
