"""`tessera compile`: what an operator, or a kernel of the user's, becomes on a GPU that need not be there."""

from __future__ import annotations

from typing import Annotated

import typer


def compile(
    operator: Annotated[
        str, typer.Argument(help="An operator of tessera.op: matmul, softmax, ...; or a kernel of yours, file.py:name")
    ],
    shape: Annotated[
        list[str],
        typer.Option(
            "--shape", "-s", help="M,N,K for matmul; else an operand's shape, once per operand: --shape 4096,4096"
        ),
    ],
    target: Annotated[str, typer.Option(help="A GPU or an architecture: H100, RTX 4090, MI300X, sm90a, gfx942, ...")],
    dtype: Annotated[str, typer.Option(help="The dtype of the operands; tf32: fp32 that products may round.")] = "fp32",
    schedule: Annotated[
        str,
        typer.Option(
            help='Knobs that differ from the default schedule: "tile=(128,128,64), warps=4"; others may follow.'
        ),
    ] = "",
    candidates: Annotated[
        int, typer.Option(help="Schedules of the model that are compiled, to take the best one that does not spill.")
    ] = 3,
    explain: Annotated[bool, typer.Option("--explain", help="Also print why the model expects that time.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Also print the source.")] = False,
    backend: Annotated[
        str, typer.Option(help="What makes code: triton (the default), or cuda_tile for NVIDIA's GPUs.")
    ] = "",
) -> None:
    """Compile an operator, or a kernel of a file, for a GPU that need not be there, and print its schedule and what the
    compiler reports: registers, spills, shared memory, occupancy and the instructions that matter. A schedule that
    breaks a rule, or that the compiler changes silently, is refused by name.
    """
    from tessera.cli.compile_kernel import compile_and_print  # which loads torch: --help does not wait for it

    compile_and_print(
        operator, shape, target, dtype, schedule, candidates, explain=explain, source=source, backend=backend
    )
