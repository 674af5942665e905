"""What users see of fusion: which operators became one kernel, the memory traffic that this saves, and what did not.

matmul_add_gelu_1: matmul . add . gelu; 2 results stay in registers, 1.57 MB less to write and read again
matmul_matmul_add_2: matmul . matmul . add; run as kernels of their own for these extents
    products-alone: GPUs form products of one A one after the other, and so do CPUs where these have few columns
      0: matmul_0 writes w0
      1: matmul_add_1 reads w0
      w0: fp32 [64, 4], 0.001 MB, steps 0 to 1
softmax_0 -> matmul_add_gelu_1 through memory, 0.39 MB: only norms of rows are reduced on the way into a product
             (reduced-operand)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from tessera.compiler import planning
from tessera.compiler.bind.binding import decomposed_of, extents_of
from tessera.compiler.bind.launches import kernel_launches
from tessera.compiler.device import compilers
from tessera.compiler.explain.decompositions import Decompositions
from tessera.compiler.graph.program import KernelItem, named_dims
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.lazy.structures.structure import Structure
from tessera.rewrite.engine import dims_of
from tessera.rewrite.fusion.reasons import kept_apart, kept_inside, operations_in
from tessera.rewrite.rules.algebra import dtype

MB = 1e6


def fusion_text(structure: Structure) -> str:
    """The kernels of a structure's program, and why what goes through memory between them does."""
    structure = planning.as_planned(structure).structure
    program = planning.program_of(structure)
    extents = extents_of(program, structure.post_order())
    function = _function(program.module)
    kernels = [op for op in function.body.block.ops if isinstance(op, ScheduleKernelOp)]
    launches, found = decomposed_of(program, structure, compilers.compiler_of(structure.device))
    whole = {launch.call.item.operation for launch in kernel_launches(launches)}
    whole |= {(launch.whole or launch.call).item.operation for launch in kernel_launches(launches)}
    items = {item.operation: item for item in program.items if isinstance(item, KernelItem)}
    decompositions = Decompositions(found, launches)
    lines = []
    for kernel in kernels:
        runs = kernel in whole or not all(extents[name] for name in items[kernel].domain)
        lines.append(_kernel_line(kernel, extents) if runs else _apart_line(kernel))
        lines += decompositions.lines(items[kernel])
    return "\n".join([*lines, *_between(function, extents)])


def through_memory(structure: Structure) -> list[str]:
    """Why each result that goes through memory between kernels of a structure, as it is planned, does."""
    program = planning.program_of(structure)
    return _between(_function(program.module), extents_of(program, structure.post_order()))


def _between(function: FuncOp, extents: Mapping[str, int]) -> list[str]:
    lines = []
    for between in kept_apart(function):
        nbytes = _nbytes(_dims_between(between.value), between.value, extents)
        lines.append(
            f"{between.producer} -> {between.consumer} through memory, {nbytes / MB:.3g} MB: {between.reason} "
            f"({between.rule})"
        )
    return lines


def _function(module: ModuleOp) -> FuncOp:
    (function,) = (op for op in module.ops if isinstance(op, FuncOp))
    return function


def _apart_line(kernel: ScheduleKernelOp) -> str:
    names = " . ".join(op.operator for op in operations_in(kernel))
    return f"{kernel.sym_name.data}: {names}; run as kernels of their own for these extents"


def _kernel_line(kernel: ScheduleKernelOp, extents: Mapping[str, int]) -> str:
    names = " . ".join(op.operator for op in operations_in(kernel))
    inside = kept_inside(kernel)
    if not inside:
        return f"{kernel.sym_name.data}: {names}"
    saved = 2 * sum(_nbytes(dims_of(op.result), op.result, extents) for op in inside)
    results = "result stays" if len(inside) == 1 else "results stay"
    return (
        f"{kernel.sym_name.data}: {names}; {len(inside)} {results} in registers, "
        f"{saved / MB:.3g} MB less to write and read again"
    )


def _dims_between(value: SSAValue) -> tuple[str, ...]:
    producer = value.owner
    assert isinstance(producer, ScheduleKernelOp)
    return named_dims(producer, "result_dims")[list(producer.outputs).index(value)]  # type: ignore[arg-type]


def _nbytes(names: tuple[str, ...], value: SSAValue, extents: Mapping[str, int]) -> int:
    return math.prod([extents[name] for name in names]) * dtype(value).itemsize
