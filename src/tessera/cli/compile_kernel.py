"""What `tessera compile` does: finds what is to be compiled, compiles it for a GPU, and prints what became of it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Console

from tessera import numerics
from tessera import op as operators
from tessera import target as targets
from tessera.compiler.device.gpu import GpuKernel, gpu_kernels
from tessera.compiler.trace.tracing import TracedFunction
from tessera.dtypes import dtype_of, fp32, tf32
from tessera.errors import ArgumentError, CompileError
from tessera.scheduling.families.backends import BACKEND
from tessera.scheduling.families.product.gpu.problem import brief
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target


def compile_and_print(
    operator: str,
    shape: Sequence[str],
    target: str,
    dtype: str,
    schedule: str,
    candidates: int,
    *,
    explain: bool,
    source: bool,
    backend: str = "",
) -> None:
    """Compiles and prints; arguments are those of the command. `backend` is the knob of that name. Raises the
    CompileError of the first kernel that does not compile after all are printed.
    """
    function = subject(operator)
    gpu = targets.gpu(target)
    sizes = [_extents(text) for text in shape]
    pins = Schedule.parse(schedule)
    if backend:
        pins = pins.replace(**{BACKEND: backend})
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


def subject(name: str) -> Callable[..., Any]:
    """The operator of a name, or the function `name` of the file in "file.py:name".

    The file runs as an import of it would, with its folder first among those that it imports from. Raises ArgumentError
    where there is no such operator, file or function.
    """
    path, separator, wanted = name.rpartition(":")
    if not separator:
        found = getattr(operators, name, None) if name in operators.__all__ else None
        if found is None:
            hints = ["any of tessera.op, for example matmul", "a kernel of a file is file.py:name"]
            raise ArgumentError(f"no operator is called {name!r}", hints=hints)
        return found  # type: ignore[no-any-return]
    file = Path(path)
    if not file.is_file():
        raise ArgumentError(f"{path}: no such file", hints=["a kernel of a file is file.py:name"])
    before = list(sys.path)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names = runpy.run_path(path, run_name=file.stem)
    finally:
        sys.path[:] = before
    kernel = names.get(wanted)
    if not callable(kernel):
        kernels = [each for each, value in names.items() if isinstance(value, TracedFunction)]
        hints = [f"its kernels are {', '.join(kernels)}" if kernels else "it has no function with @op.kernel"]
        raise ArgumentError(f"{path} has no function {wanted!r}", hints=hints)
    return kernel  # type: ignore[no-any-return]


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
        *(("remark", remark) for remark in facts.remarks),
        ("compiled by", facts.compiler),
        ("source", facts.source),
    ]
