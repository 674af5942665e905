"""`tessera compile`: what an operator becomes on a GPU that need not be there."""

from __future__ import annotations

from textwrap import indent
from typing import Annotated

import typer
from rich.console import Console

from tessera import numerics
from tessera import op as operators
from tessera import target as targets
from tessera.compiler.device.gpu import GpuKernel, gpu_kernels
from tessera.dtypes import dtype_of, fp32, tf32
from tessera.errors import ArgumentError, CompileError
from tessera.scheduling.families.product.gpu.problem import brief
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target


def compile(
    operator: Annotated[str, typer.Argument(help="An operator of tessera.op: matmul, softmax, layer_norm, ...")],
    shape: Annotated[
        list[str],
        typer.Option(
            "--shape", "-s", help="M,N,K for matmul; else an operand's shape, once per operand: --shape 4096,4096"
        ),
    ],
    target: Annotated[str, typer.Option(help="A GPU or an architecture: sm80, sm90, sm100, gfx942, H200, ...")],
    dtype: Annotated[str, typer.Option(help="The dtype of the operands; tf32: fp32 that products may round.")] = "fp32",
    schedule: Annotated[
        str,
        typer.Option(help='Knobs that differ from the default schedule: "tile=(128,128,64), warps=4".'),
    ] = "",
    candidates: Annotated[
        int, typer.Option(help="Schedules of the model that are compiled, to take the best one that does not spill.")
    ] = 3,
    explain: Annotated[bool, typer.Option("--explain", help="Also print why the model expects that time.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Also print the Triton source.")] = False,
) -> None:
    """Compile an operator for a GPU that need not be there, and print its schedule and what the compiler reports:
    registers, spills, shared memory, occupancy and the instructions that matter. A schedule that breaks a rule, or that
    the compiler changes silently, is refused by name.
    """
    function = getattr(operators, operator, None) if operator in operators.__all__ else None
    if function is None:
        raise ArgumentError(f"no operator is called {operator!r}", hints=["any of tessera.op, for example matmul"])
    gpu = targets.gpu(target)
    sizes = [_extents(text) for text in shape]
    pins = Schedule.parse(schedule)
    rounded = dtype_of(dtype) is tf32
    with numerics.policy("fast", tf32=rounded):
        kernels = gpu_kernels(
            function, sizes[0] if len(sizes) == 1 else sizes, fp32 if rounded else dtype, gpu, pins, candidates
        )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for kernel in kernels:
        console.print(f"{kernel.name} for {gpu.name} ({gpu.arch})")
        for name, value in _rows(kernel, gpu):
            console.print(f"  {name:13} {value}")
        if explain and kernel.estimate is not None:
            console.print("  why\n" + indent(kernel.estimate.explain(), "    "))
        if source and not isinstance(kernel.facts, CompileError):
            console.print(kernel.facts.text)
    failed = [kernel.facts for kernel in kernels if isinstance(kernel.facts, CompileError)]
    if failed:
        raise failed[0]


def _extents(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(extent) for extent in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"--shape {text} is no list of extents", hints=["for example --shape 1024,1024,1024"]
        ) from None


def _rows(kernel: GpuKernel, gpu: Target) -> list[tuple[str, str]]:
    rows = [("schedule", str(brief(kernel.schedule)))]
    facts = kernel.facts
    if isinstance(facts, CompileError):
        return [*rows, ("not compiled", str(facts.args[0]))]
    held = facts.occupancy(gpu)
    found = f"{held.fraction:.0%}: {held.warps} warps a multiprocessor, bound by {held.binds}"
    if not held.blocks:
        found = f"none: a block does not fit a multiprocessor, for its {held.binds}"
    return [
        *rows,
        *([("estimate", kernel.estimate.explain().splitlines()[0])] if kernel.estimate is not None else []),
        *(("pruned", f"{brief(each.schedule)}: {each.reason}") for each in kernel.pruned),
        ("registers", f"{facts.registers} a thread"),
        ("spills", f"{facts.spill_bytes} bytes a thread"),
        ("shared memory", f"{facts.shared_bytes} bytes a block"),
        ("occupancy", found),
        (
            "instructions",
            ", ".join(f"{name} x {count}" for name, count in facts.instructions.items()) or "none of note",
        ),
        ("compiled by", f"Triton {facts.triton}"),
        ("source", facts.source),
    ]
