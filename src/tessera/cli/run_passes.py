"""What `tessera opt` does: runs passes on a file of IR, and prints it or what a backend makes of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from tessera import target as targets
from tessera.backend.contract import Kind
from tessera.backend.registry import cpu_backend, gpu_backend
from tessera.cli.emission import Emission
from tessera.errors import ArgumentError
from tessera.ir.parsing import SourceMap, parse_with_source, print_module
from tessera.ir.passes import IR_PASSES, Pass, PassPipeline, pass_class
from tessera.ir.schedule import operations as schedule_ir
from tessera.ir.tile.operations import KernelOp
from tessera.rewrite.passes import REWRITE_PASSES
from tessera.scheduling.passes import SCHEDULING_PASSES

PASSES: Mapping[str, str] = {**IR_PASSES, **REWRITE_PASSES, **SCHEDULING_PASSES}
"""Every pass that a pipeline may name: name -> "module:Class"."""


_KINDS: Mapping[Emission, Kind] = {Emission.LLVM: "source", Emission.ASM: "asm", Emission.OBJECT: "object"}


def run(
    file: Path, pass_pipeline: str, emit: Emission, gpu: str, kernel: str, output: Path, *, print_after_each: bool
) -> None:
    """Runs the passes on the module in a file, and writes what is asked for. Raises what reading, passes and backends
    raise.
    """
    pipeline = PassPipeline.parse(pass_pipeline, PASSES)
    module, source = _read(file)
    pipeline.run(module, _print_to_stderr if print_after_each else None, source.located)
    if kernel or emit is not Emission.IR:
        _keep_one(module, kernel)
    _write(_emission(module, emit, gpu), output)


def list_passes() -> None:
    """Prints the passes that a pipeline may name."""
    print("\n".join(map(_described, PASSES)))


def _described(name: str) -> str:
    """A pass with its options and the first line of its documentation."""
    kind = pass_class(name, PASSES)
    options = " ".join(field.name for field in dataclasses.fields(kind))
    return f"{name + (f'{{{options}}}' if options else ''):25} {(kind.__doc__ or '').splitlines()[0]}"


def _keep_one(module: ModuleOp, wanted: str) -> None:
    """Removes all kernels but the wanted one; without a name there may be one only."""
    kernels = [operation for operation in module.walk() if isinstance(operation, KernelOp)]
    if not kernels and any(isinstance(operation, schedule_ir.ScheduleKernelOp) for operation in module.walk()):
        hint = 'lower-schedule makes it of kernels over buffers, as inspect("schedule") prints them'
        raise ArgumentError("the module is Schedule IR, --emit takes Tile IR", hints=(f"--pass-pipeline {hint}",))
    names = ", ".join(kernel.sym_name.data for kernel in kernels)
    if wanted and all(kernel.sym_name.data != wanted for kernel in kernels):
        raise ArgumentError(f"there is no kernel {wanted!r}", hints=(f"kernels are {names}",) if names else ())
    if not wanted and len(kernels) > 1:
        raise ArgumentError(f"the module has {len(kernels)} kernels: {names}", hints=("choose one with --kernel",))
    for kernel in kernels:
        if wanted and kernel.sym_name.data != wanted:
            Rewriter.erase_op(kernel)


def _read(file: Path) -> tuple[ModuleOp, SourceMap]:
    if str(file) == "-":
        return parse_with_source(sys.stdin.read(), "<stdin>")
    try:
        return parse_with_source(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file} cannot be read: {error}") from error


def _print_to_stderr(step: Pass, module: ModuleOp) -> None:
    print(f"// after {step}\n{print_module(module)}", file=sys.stderr, end="")


def _emission(module: ModuleOp, emit: Emission, gpu: str) -> str | bytes:
    if emit is Emission.IR:
        return print_module(module)
    if emit is Emission.TRITON:
        return gpu_backend().emit(module, targets.gpu(gpu), "source")
    return cpu_backend().emit(module, targets.detect(), _KINDS[emit])


def _write(result: str | bytes, output: Path) -> None:
    data = result.encode() if isinstance(result, str) else result
    if str(output) == "-":
        if isinstance(result, bytes) and sys.stdout.isatty():
            raise ArgumentError(
                "an object is not for a terminal", hints=("name a file with -o, or pipe to tessera run",)
            )
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise ArgumentError(f"{output} cannot be written: {error}") from error
