"""The printed function `launch`, which runs a kernel on torch tensors, for people who read and try a kernel.

It takes tensors and numbers in the order of the kernel's arguments, and runs one program per step of the grid, or one
per multiprocessor where programs walk the grid.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.backend.triton.printing.arithmetic import ARITHMETIC
from tessera.backend.triton.printing.descriptors import HOST, Descriptor
from tessera.backend.triton.printing.memory import BufferNames, Buffers
from tessera.backend.triton.printing.printer import Printer, Text
from tessera.backend.triton.printing.signature import RESERVED, PrintedParameter, Signature
from tessera.ir.tile import operations as tile
from tessera.target import Target

_ALLOCATOR = """def allocate(size, alignment, stream):
    \"\"\"Memory for the descriptors that the kernel makes.\"\"\"
    return torch.empty(size, dtype=torch.int8, device="cuda")"""


def launcher(signature: Signature, grid: tile.ParallelOp, target: Target) -> str:
    """The text of `launch`, and of what it needs."""
    kernel, labels = signature.kernel, signature.labels
    passed = [_passed(signature, parameter) for parameter in signature.parameters]
    passed += [f"{option}={value}" for option, value in signature.options.items()]
    computed, counts = _grid_counts(signature, grid)
    programs = " * ".join(counts)
    if grid.grid is not None:
        programs = f"min({programs}, {target.cores})"
    taken = [*labels, *(p.name for p in signature.parameters if p.role == "times")]
    made = [d for d in signature.descriptors.values() if d.access == HOST]
    in_kernel = len(made) < len(signature.descriptors)
    lines = [
        f"def launch({', '.join(taken)}):",
        f'    """Runs the kernel; it writes {" and ".join(labels[i] for i in tile.integers(kernel.outputs))}."""',
        *computed,
        *(["    triton.set_allocator(allocate)"] if in_kernel else []),
        *(f"    {descriptor.name} = {_described(signature, descriptor)}" for descriptor in made),
        f"    grid = ({programs},)",
        f"    {signature.name}[grid](",
        *(f"        {text}," for text in passed),
        "    )",
    ]
    return "\n\n\n".join([*([_ALLOCATOR] if in_kernel else []), "\n".join(lines)])


def imports(signature: Signature) -> list[str]:
    """What `launch` needs beside Triton."""
    accesses = {descriptor.access for descriptor in signature.descriptors.values()}
    lines = ["import torch"] if accesses - {HOST} else []
    after = ["from triton.tools.tensor_descriptor import TensorDescriptor"] if HOST in accesses else []
    return [*lines, "import triton", "import triton.language as tl", *after]


def _passed(signature: Signature, parameter: PrintedParameter) -> str:
    if parameter.role in ("descriptor", "times"):
        return parameter.name
    label = signature.labels[parameter.argument]
    return label if parameter.role == "argument" else host(label, parameter.role, parameter.dim)


def host(label: str, what: str, dim: int) -> str:
    """The size or stride of a tensor as `launch` writes it."""
    return f"{label}.stride({dim})" if what == "stride" else f"{label}.shape[{dim}]"


def _described(signature: Signature, descriptor: Descriptor) -> str:
    label = signature.labels[descriptor.argument.index]
    names = signature.buffers[descriptor.argument]
    shape = ", ".join(host(label, "shape", dim) for dim in descriptor.order)
    # The promised stride, as torch may say anything of a dimension of one element.
    strides = ", ".join("1" if names.strides[dim] == "1" else host(label, "stride", dim) for dim in descriptor.order)
    return f"TensorDescriptor({label}, [{shape}], [{strides}], {list(descriptor.block)})"


def _grid_counts(signature: Signature, grid: tile.ParallelOp) -> tuple[list[str], list[str]]:
    """The number of programs along each dimension, and lines that go before.

    Prints what the grid's extents are made of once more, of shapes instead of the kernel's parameters.
    """
    printer = Printer({}, {*RESERVED, *signature.labels})
    shapes: dict[SSAValue, BufferNames] = {}
    for argument, label in zip(signature.arguments, signature.labels, strict=True):
        names = signature.buffers.get(argument)
        if names is None:
            printer.define(argument, Text(label))
        else:
            sizes = tuple(
                size if size.isdecimal() else host(label, "shape", dim) for dim, size in enumerate(names.sizes)
            )
            shapes[argument] = BufferNames(names.pointer, sizes, names.strides)
    printer.handlers = {**ARITHMETIC, **Buffers(signature.kernel, shapes, {}).handlers()}
    needed: set[Operation] = set()
    pending = [extent.owner for extent in grid.extents]
    while pending:
        owner = pending.pop()
        if isinstance(owner, Operation) and owner not in needed:
            needed.add(owner)
            pending += [operand.owner for operand in owner.operands]
    for op in signature.kernel.body.block.ops:
        if op in needed:
            printer.run_one(op)
    factors = []
    for extent, step in zip(grid.extents, tile.integers(grid.steps), strict=True):
        factors.append(printer.operand(extent) if step == 1 else f"triton.cdiv({printer.text(extent)}, {step})")
    return printer.lines, factors
