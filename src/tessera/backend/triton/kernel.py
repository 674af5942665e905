"""One kernel as a Python module: imports, combining functions, the kernel, and `launch`.

Buffers become a pointer with extents and strides, as far as their types do not promise them; scalars stay scalars.
`launch` takes torch tensors and numbers in the order of the kernel's arguments, and runs one program per step of the
grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from tessera.backend.triton.arithmetic import ARITHMETIC
from tessera.backend.triton.control import CONTROL
from tessera.backend.triton.memory import BufferNames, Buffers, buffer_names
from tessera.backend.triton.printer import Printer, Text, element_type
from tessera.backend.triton.tiles import HELPERS, TILES
from tessera.errors import CompileError
from tessera.ir import tile
from tessera.target import Target

_HINTS: Mapping[str, str] = {"warps": "num_warps", "pipeline_depth": "num_stages"}
"""Attributes of a kernel that say how it is launched -> Triton's options."""
_RESERVED = ("tl", "triton", "libdevice", "launch", "program", "min", "max", "range", "grid")


def generate(module: ModuleOp, target: Target) -> str:
    """The Triton source of a module's kernel. Raises CompileError for what Triton cannot express."""
    kernel = _find_kernel(module)
    grid = _find_grid(kernel)
    arguments = kernel.body.block.args
    name = _function_name(kernel)
    printer = Printer({**TILES, **ARITHMETIC, **CONTROL}, {*_RESERVED, *HELPERS, name})
    labels = [printer.name(argument.name_hint or f"arg{argument.index}") for argument in arguments]
    buffers = _buffers(arguments, labels)
    printer.handlers = {**printer.handlers, **Buffers(kernel, buffers).handlers()}
    for argument, label in zip(arguments, labels, strict=True):
        if argument not in buffers:
            printer.define(argument, Text(label))
    printer.run(kernel.body.block)
    parts = [
        _preamble(kernel, target, "\n".join(printer.lines)),
        *(_helper(helper) for helper in sorted(printer.helpers)),
        _kernel_text(name, _parameters(arguments, labels, buffers), printer.lines),
        _launcher(kernel, name, grid, labels, buffers),
    ]
    return "\n\n\n".join(parts) + "\n"


class Parameter(NamedTuple):
    """A parameter of a printed kernel.

    `annotation` is the type in the function's header ("" for none), `kind` Triton's short name of the type at a launch
    ("*bf16", "i32"). It is the kernel argument of number `argument` itself, or the size or stride of its dimension
    `dim`.
    """

    name: str
    annotation: str
    kind: str
    argument: int
    role: Literal["argument", "size", "stride"] = "argument"
    dim: int = 0

    @property
    def text(self) -> str:
        """The parameter as it stands in the function's header."""
        return f"{self.name}: tl.{self.annotation}" if self.annotation else self.name


def parameters_of(module: ModuleOp) -> tuple[str, list[Parameter], dict[str, int]]:
    """The name, the parameters and the launch options (`num_warps`, `num_stages`) of a module's printed kernel.

    Raises CompileError, as `generate` does.
    """
    kernel = _find_kernel(module)
    arguments = kernel.body.block.args
    printer = Printer({}, {*_RESERVED, *HELPERS, _function_name(kernel)})
    labels = [printer.name(argument.name_hint or f"arg{argument.index}") for argument in arguments]
    return _function_name(kernel), _parameters(arguments, labels, _buffers(arguments, labels)), _options(kernel)


def _buffers(arguments: Sequence[BlockArgument], labels: Sequence[str]) -> dict[SSAValue, BufferNames]:
    return {
        argument: buffer_names(label, argument.type)
        for argument, label in zip(arguments, labels, strict=True)
        if isinstance(argument.type, MemRefType)
    }


def _options(kernel: tile.KernelOp) -> dict[str, int]:
    return {
        option: hint.value.data
        for attribute, option in _HINTS.items()
        if isinstance(hint := kernel.attributes.get(attribute), IntegerAttr)
    }


def _find_kernel(module: ModuleOp) -> tile.KernelOp:
    kernels = [op for op in module.body.walk() if isinstance(op, tile.KernelOp)]
    if len(kernels) != 1:
        names = ", ".join(kernel.sym_name.data for kernel in kernels) or "none"
        raise CompileError(f"a module with exactly one tessera.tile.kernel is meant; this one has {names}")
    return kernels[0]


def _find_grid(kernel: tile.KernelOp) -> tile.ParallelOp:
    grids = [op for op in kernel.body.block.ops if isinstance(op, tile.ParallelOp)]
    loose = [op for op in kernel.body.block.ops if isinstance(op, (tile.StoreOp, tile.ForOp))]
    if len(grids) != 1 or loose:
        raise CompileError("a kernel for a GPU is one tessera.tile.parallel, which becomes the grid")
    return grids[0]


def _function_name(kernel: tile.KernelOp) -> str:
    name = kernel.sym_name.data.replace(".", "_")
    if not name.isidentifier() or name in _RESERVED or name in HELPERS:
        raise CompileError(f"{kernel.sym_name.data!r} cannot be the name of a Triton kernel")
    return name


def _preamble(kernel: tile.KernelOp, target: Target, body: str) -> str:
    lines = [
        f'"""Kernel {kernel.sym_name.data!r} for {target.arch}, printed from Tile IR."""',
        "",
        "import triton",
        "import triton.language as tl",
    ]
    if "libdevice." in body:
        lines.append("from triton.language.extra import libdevice")
    return "\n".join(lines)


def _helper(name: str) -> str:
    return f"@triton.jit\ndef {name}(a, b):\n    return {HELPERS[name]}"


def _kernel_text(name: str, parameters: Sequence[Parameter], lines: Sequence[str]) -> str:
    listed = "".join(f"    {parameter.text},\n" for parameter in parameters)
    return "\n".join([f"@triton.jit\ndef {name}(\n{listed}):", *lines])


def _parameters(
    arguments: Sequence[BlockArgument], labels: Sequence[str], buffers: Mapping[SSAValue, BufferNames]
) -> list[Parameter]:
    """The kernel's parameters. Strides are 64 bits wide, so that offsets are."""
    parameters: list[Parameter] = []
    for number, (argument, label) in enumerate(zip(arguments, labels, strict=True)):
        names = buffers.get(argument)
        element = element_type(argument)
        if names is None:
            annotation = "" if isinstance(argument.type, IndexType) else element.triton
            parameters.append(Parameter(label, annotation, element.short, number))
            continue
        parameters.append(Parameter(names.pointer, "", f"*{element.short}", number))
        for dim, size in enumerate(names.sizes):
            if not size.isdecimal():
                parameters.append(Parameter(size, "", "i32", number, "size", dim))
        for dim, stride in enumerate(names.strides):
            if not _is_number(stride):
                parameters.append(Parameter(stride, "int64", "i64", number, "stride", dim))
    return parameters


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _launcher(
    kernel: tile.KernelOp,
    name: str,
    grid: tile.ParallelOp,
    labels: Sequence[str],
    buffers: Mapping[SSAValue, BufferNames],
) -> str:
    arguments = kernel.body.block.args
    passed: list[str] = []
    for argument, label in zip(arguments, labels, strict=True):
        names = buffers.get(argument)
        passed.append(label)
        if names is not None:
            passed += [_host(label, "shape", dim) for dim, size in enumerate(names.sizes) if not size.isdecimal()]
            passed += [_host(label, "stride", dim) for dim, s in enumerate(names.strides) if not _is_number(s)]
    passed += [f"{option}={value}" for option, value in _options(kernel).items()]
    computed, counts = _grid_counts(kernel, grid, labels, buffers)
    lines = [
        f"def launch({', '.join(labels)}):",
        f'    """Runs the kernel; it writes {" and ".join(labels[i] for i in tile.integers(kernel.outputs))}."""',
        *computed,
        f"    grid = ({' * '.join(counts)},)",
        f"    {name}[grid](",
        *(f"        {text}," for text in passed),
        "    )",
    ]
    return "\n".join(lines)


def _host(label: str, what: str, dim: int) -> str:
    return f"{label}.stride({dim})" if what == "stride" else f"{label}.shape[{dim}]"


def _grid_counts(
    kernel: tile.KernelOp,
    grid: tile.ParallelOp,
    labels: Sequence[str],
    buffers: Mapping[SSAValue, BufferNames],
) -> tuple[list[str], list[str]]:
    """The number of programs along each dimension, and lines that go before.

    Prints what the grid's extents are made of once more, of shapes instead of the kernel's parameters.
    """
    host = Printer({}, {*_RESERVED, *labels})
    shapes: dict[SSAValue, BufferNames] = {}
    for argument, label in zip(kernel.body.block.args, labels, strict=True):
        names = buffers.get(argument)
        if names is None:
            host.define(argument, Text(label))
        else:
            sizes = tuple(
                size if size.isdecimal() else _host(label, "shape", dim) for dim, size in enumerate(names.sizes)
            )
            shapes[argument] = BufferNames(names.pointer, sizes, names.strides)
    host.handlers = {**ARITHMETIC, **Buffers(kernel, shapes).handlers()}
    needed: set[Operation] = set()
    pending = [extent.owner for extent in grid.extents]
    while pending:
        owner = pending.pop()
        if isinstance(owner, Operation) and owner not in needed:
            needed.add(owner)
            pending += [operand.owner for operand in owner.operands]
    for op in kernel.body.block.ops:
        if op in needed:
            host.run_one(op)
    factors = []
    for extent, step in zip(grid.extents, tile.integers(grid.steps), strict=True):
        factors.append(host.operand(extent) if step == 1 else f"triton.cdiv({host.text(extent)}, {step})")
    return host.lines, factors
