"""One kernel as a Python module: imports, combining functions, the kernel, and `launch`, which runs it on tensors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.triton.printing import tile_clock
from tessera.backend.triton.printing.arithmetic import ARITHMETIC
from tessera.backend.triton.printing.control import CONTROL
from tessera.backend.triton.printing.descriptors import HOST, made
from tessera.backend.triton.printing.float8 import for_target
from tessera.backend.triton.printing.launcher import imports, launcher
from tessera.backend.triton.printing.memory import Buffers
from tessera.backend.triton.printing.printer import Printer, Text
from tessera.backend.triton.printing.signature import PrintedParameter, Signature, parameters_of, signature_of
from tessera.backend.triton.printing.tiles import HELPERS, TILES
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.target import Target

__all__ = ["PrintedParameter", "generate", "parameters_of"]


def generate(module: ModuleOp, target: Target) -> str:
    """The Triton source of a module's kernel. Raises CompileError for what Triton cannot express."""
    printer = Printer({**TILES, **ARITHMETIC, **CONTROL}, set())
    signature = signature_of(for_target(module, target), printer)
    grid = _find_grid(signature.kernel)
    memory = Buffers(signature.kernel, signature.buffers, signature.descriptors)
    printer.handlers = {**printer.handlers, **memory.handlers()}
    for argument, label in zip(signature.arguments, signature.labels, strict=True):
        if argument not in signature.buffers:
            printer.define(argument, Text(label))
    for descriptor in signature.descriptors.values():
        if descriptor.access != HOST:
            names = signature.buffers[descriptor.argument]
            call = made(descriptor, names.pointer, names.sizes, names.strides)
            printer.call(f"{descriptor.name} = tl.make_tensor_descriptor", call)
    printer.run(signature.kernel.body.block)
    parts = [
        _preamble(signature, target, "\n".join(printer.lines)),
        *(_helper(helper) for helper in sorted(printer.helpers)),
        *([tile_clock.functions(target)] if signature.kernel.timed is not None else []),
        _kernel_text(signature, printer.lines),
        launcher(signature, grid, target),
    ]
    return "\n\n\n".join(parts) + "\n"


def _find_grid(kernel: tile.KernelOp) -> tile.ParallelOp:
    grids = [op for op in kernel.body.block.ops if isinstance(op, tile.ParallelOp)]
    loose = [op for op in kernel.body.block.ops if isinstance(op, (tile.StoreOp, tile.ForOp))]
    if len(grids) != 1 or loose:
        raise CompileError("a kernel for a GPU is one tessera.tile.parallel, which becomes the grid")
    return grids[0]


def _preamble(signature: Signature, target: Target, body: str) -> str:
    name = signature.kernel.sym_name.data
    lines = [f'"""Kernel {name!r} for {target.arch}, printed from Tile IR."""', "", *imports(signature)]
    if "libdevice." in body:
        lines.append("from triton.language.extra import libdevice")
    return "\n".join(lines)


def _helper(name: str) -> str:
    return f"@triton.jit\ndef {name}(a, b):\n    return {HELPERS[name]}"


def _kernel_text(signature: Signature, lines: Sequence[str]) -> str:
    listed = "".join(f"    {parameter.text},\n" for parameter in signature.parameters)
    return "\n".join([f"@triton.jit\ndef {signature.name}(\n{listed}):", *lines])
