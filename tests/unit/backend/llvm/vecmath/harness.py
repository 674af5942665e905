"""Compiles one vector math function into a loop over arrays, through nothing but llvmlite."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from tessera.backend.llvm.vecmath import FloatType, expand

Array = npt.NDArray[Any]
SCALARS = {"f32": "float", "f64": "double"}
NUMPY = {"f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class Cpu:
    """As much of a target as the expansions ask for."""

    has_avx512: bool


@dataclass
class TextEmitter:
    """The smallest emitter: a list of lines and a set of declarations."""

    target: Cpu
    lines: list[str] = field(default_factory=list)
    declarations: set[str] = field(default_factory=set)

    def emit(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def declare(self, signature: str) -> None:
        self.declarations.add(f"declare {signature}")


def host_has_avx512() -> bool:
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


def module_text(
    function: str, operands: int, lanes: int, dtype: FloatType, avx512: bool, approximate: bool = False
) -> str:
    """IR of `void apply(i64 count, ptr out, ptr in...)`; count is a multiple of the lanes."""
    emitter = TextEmitter(Cpu(avx512))
    scalar = SCALARS[dtype]
    kind = scalar if lanes == 1 else f"<{lanes} x {scalar}>"
    size = 4 if dtype == "f32" else 8
    arguments = []
    for index in range(operands):
        address = emitter.emit(f"getelementptr {scalar}, ptr %in{index}, i64 %i")
        arguments.append(emitter.emit(f"load {kind}, ptr {address}, align {size}"))
    result = expand(function, arguments, emitter, lanes, dtype, approximate)
    target = emitter.emit(f"getelementptr {scalar}, ptr %out, i64 %i")
    parameters = "".join(f", ptr noalias %in{index}" for index in range(operands))
    width = '"prefer-vector-width"="512"' if avx512 else '"prefer-vector-width"="256"'
    body = "\n".join(emitter.lines)
    return "\n".join(sorted(emitter.declarations)) + (
        f"\ndefine void @apply(i64 %count, ptr noalias %out{parameters}) #0 {{\n"
        f"entry:\n  br label %loop\nloop:\n  %i = phi i64 [0, %entry], [%next, %loop]\n{body}\n"
        f"  store {kind} {result}, ptr {target}, align {size}\n  %next = add i64 %i, {lanes}\n"
        f"  %more = icmp ult i64 %next, %count\n  br i1 %more, label %loop, label %exit\n"
        f"exit:\n  ret void\n}}\nattributes #0 = {{ nounwind {width} }}\n"
    )


@cache
def compiled(
    function: str, operands: int, lanes: int, dtype: FloatType, avx512: bool, approximate: bool = False
) -> tuple[Any, int]:
    """The engine, which must outlive the address, and the address of `apply`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    if host_has_avx512() and not avx512:
        cpu, features = "x86-64-v3", ""  # AVX2 and FMA, nothing beyond
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3)
    module = llvm.parse_assembly(module_text(function, operands, lanes, dtype, avx512, approximate))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine, engine.get_function_address("apply")


def native(
    function: str,
    operands: int,
    lanes: int = 16,
    dtype: FloatType = "f32",
    avx512: bool = True,
    approximate: bool = False,
) -> Callable[..., Array]:
    """`function` on numpy arrays of any length, computed `lanes` at a time."""
    _, address = compiled(function, operands, lanes, dtype, avx512 and host_has_avx512(), approximate)
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (operands + 1))(address)

    def apply(*arrays: Array) -> Array:
        count = len(arrays[0])
        padded = -(-count // lanes) * lanes
        inputs = [np.ones(padded, NUMPY[dtype]) for _ in arrays]
        for target, source in zip(inputs, arrays, strict=True):
            target[:count] = source
        out = np.empty(padded, NUMPY[dtype])
        call(padded, out.ctypes.data, *[array.ctypes.data for array in inputs])
        return out[:count]

    return apply
