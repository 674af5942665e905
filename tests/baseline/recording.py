"""A process that writes down what this checkout makes for one pretended device: `python -m tests.baseline.recording`.

Nothing that is compiled runs, so the device need not be there: kernels of CPUs are loaded as functions that do nothing,
those of GPUs are lowered and printed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast
from unittest.mock import patch

from tessera import target
from tessera.target import Target
from tests.unit.scheduling.problems import AMX, AVX2

DRAWN = 3
"""Schedules drawn from the space of each kernel, beside the default one."""

Made: TypeAlias = list[tuple[str, str]]
"""Kernels in the order in which they were made: the name of the file of their Tile IR, the hash of their code."""


def _without(*features: str) -> frozenset[str]:
    return frozenset(each for each in AMX.features if not each.startswith(features))


DEVICES: dict[str, Target] = {
    "avx2": replace(AVX2, features=_without("avx512", "amx")),
    "avx512": replace(AMX, arch="skylake-avx512", features=_without("avx512vnni", "avx512bf16", "amx")),
    "avx512bf16": replace(AMX, arch="cooperlake", features=_without("amx")),
    "amx": AMX,
    "sm90": target.gpu("sm90"),
    "gfx942": target.gpu("gfx942"),
}

_NOTHING = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(lambda *_: None)


class _Idle:
    """A kernel that does nothing."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.address = ctypes.cast(_NOTHING, ctypes.c_void_p).value


def _hashed(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _kept(text: str, folder: Path) -> str:
    name = _hashed(text)
    (folder / f"{name}.mlir").write_text(text)
    return name


def cpu_kernels(device: Target, folder: Path) -> Iterator[tuple[str, Made]]:
    """(program and schedule, kernels that were made for it), where they were not made for an earlier one."""
    patch.object(target, "detect", lambda: device).start()
    from tessera.backend import llvm
    from tessera.backend.llvm import backend
    from tessera.compiler.device import compilers
    from tessera.ir.parsing import print_module
    from tessera.scheduling.language.sources import ChosenSchedule
    from tests.baseline.programs import PROGRAMS
    from tests.fuzz.ways import forget

    made: Made = []
    compile_ = backend._compile

    def noted(module: Any, device: Target) -> Any:
        kernel = compile_(module, device)
        made.append((_kept(print_module(module), folder), _hashed(kernel.code)))
        return kernel

    patch.object(backend, "_compile", noted).start()
    patch.object(llvm.LLVMBackend, "load", lambda self, kernel: _Idle(kernel)).start()
    compiler = compilers.kernel_compiler()

    def drawing(number: int) -> Any:
        return lambda compiler, call, problem: ChosenSchedule(
            compiler.space(compiler.subject(call), problem).draw(random.Random(f"{call.item.name} {number}")), "given"
        )

    for name, build in PROGRAMS.items():
        for number in range(DRAWN + 1):
            compiler.tuned = drawing(number) if number else None
            forget()
            made.clear()
            build().eval()
            yield f"{name}, schedule {number}", list(made)


def gpu_kernels(device: Target, folder: Path) -> Iterator[tuple[str, Made]]:
    """(operator, operands and schedule, its kernels with the hash of their Triton source)."""
    from tessera.backend.triton import TritonBackend
    from tessera.compiler.device.compiler import DeviceCompiler
    from tessera.compiler.device.gpu import gpu_sites
    from tessera.ir.parsing import print_module
    from tests.baseline.programs import OPERATORS

    choose, number = DeviceCompiler.choose, 0

    def drawn(self: Any, call: Any, schedule: Any = None, *rest: Any) -> Any:
        if number and schedule is None:
            space = self.space(self.subject(call), self.problem(call))
            schedule = space.draw(random.Random(f"{call.item.name} {number}"))
        return choose(self, call, schedule, *rest)

    patch.object(DeviceCompiler, "choose", drawn).start()
    for name, (function, shapes, dtype) in OPERATORS.items():
        for number in range(DRAWN + 1):
            made = []
            for site in gpu_sites(function, shapes, dtype, device):
                module = site.lowered.module
                code = TritonBackend().emit(module, device, "source")
                made.append((_kept(print_module(module), folder), _hashed(code)))
            yield f"{name}, schedule {number}", made


def lower_what_is_read_back() -> None:
    """Has every kernel be lowered from what Schedule IR says of it: printed, parsed and read."""
    from xdsl.dialects.builtin import ModuleOp

    from tessera.compiler.device import compiler
    from tessera.ir.parsing import parse, print_module
    from tessera.scheduling.families.registry import kernel_family, lower
    from tessera.scheduling.lowering.schedule_reader import read_kernel
    from tessera.scheduling.lowering.schedule_writer import kernel_of

    def through_text(spec: Any, schedule: Any, target: Target) -> Any:
        family = kernel_family(spec)
        (kernel,) = parse(print_module(ModuleOp([kernel_of(spec, family.name, schedule)]))).ops
        read: Any = read_kernel(cast(Any, kernel), family.spec)
        return lower(read.spec, read.schedule, target)

    patch.object(compiler, "lower", through_text).start()


def main() -> None:
    """Writes the Tile IR of every kernel into the folder of the second argument, and what was made into `made.json`;
    with a third argument, `text`, of what Schedule IR says of it.
    """
    device, folder = DEVICES[sys.argv[1]], Path(sys.argv[2])
    if sys.argv[3:] == ["text"]:
        lower_what_is_read_back()
    kernels = gpu_kernels if device.kind == "gpu" else cpu_kernels
    (folder / "made.json").write_text(json.dumps(dict(kernels(device, folder)), indent=1))


if __name__ == "__main__":
    main()
