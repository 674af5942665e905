"""The signature of a printed kernel: its parameters, in launch order, and the options that it is compiled with.

A buffer becomes a pointer with extents and strides, as far as its type does not promise them; one that is reached by
descriptors that the launching side makes, those and its extents. Scalars stay scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from tessera.backend.gpu_objects import Role
from tessera.backend.triton.printing import tile_clock
from tessera.backend.triton.printing.descriptors import HOST, Descriptor, Key, find_descriptors
from tessera.backend.triton.printing.memory import BufferNames, buffer_names
from tessera.backend.triton.printing.printer import Printer, element_type
from tessera.backend.triton.printing.tiles import HELPERS
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.divisors import divisors_of
from tessera.ir.tile.operations import find_kernel

_HINTS: Mapping[str, str] = {"warps": "num_warps", "pipeline_depth": "num_stages", "max_registers": "maxnreg"}
"""Attributes of a kernel that say how it is compiled -> Triton's options."""
START = 16
"""Bytes that divide the address of a buffer that is reached by a descriptor ("CUDA Driver API",
`cuTensorMapEncodeTiled`).
"""
RESERVED = (
    "tl",
    "triton",
    "libdevice",
    "launch",
    "program",
    "min",
    "max",
    "range",
    "grid",
    "torch",
    "TensorDescriptor",
    *tile_clock.NAMES,
)


class PrintedParameter(NamedTuple):
    """A parameter of a printed kernel.

    `annotation` is the type in the function's header ("" for none), `kind` Triton's short name of the type at a launch
    ("*bf16", "i32", "tensordesc<bf16[128,64]>"). It is the kernel argument of number `argument` itself, the size or
    stride of its dimension `dim`, or a descriptor of it, which moves `block` and walks the dimensions in `order`. One
    that is no argument's ("times", of timed kernels) is the address of the memory of `tile_clock.py`.
    `divisor` is what the kernel relies on: a number that divides the parameter (bytes of a pointer).
    """

    name: str
    annotation: str
    kind: str
    argument: int
    role: Role = "argument"
    dim: int = 0
    order: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    divisor: int = 1

    @property
    def text(self) -> str:
        """The parameter as it stands in the function's header."""
        return f"{self.name}: tl.{self.annotation}" if self.annotation else self.name


@dataclass(frozen=True)
class Signature:
    """How a kernel is called: the names of its arguments, how buffers reach it, and its parameters."""

    kernel: tile.KernelOp
    name: str
    labels: Sequence[str]
    buffers: Mapping[SSAValue, BufferNames]
    descriptors: Mapping[Key, Descriptor]

    @property
    def arguments(self) -> Sequence[BlockArgument]:
        """The kernel's arguments."""
        return self.kernel.body.block.args

    @property
    def options(self) -> dict[str, int]:
        """The options that it is compiled with (`num_warps`, ...)."""
        return {
            option: hint.value.data
            for attribute, option in _HINTS.items()
            if isinstance(hint := self.kernel.attributes.get(attribute), IntegerAttr)
        }

    def descriptors_of(self, argument: SSAValue, host: bool) -> list[Descriptor]:
        """The descriptors of a buffer that the host makes, or that the kernel does."""
        return [d for d in self.descriptors.values() if d.argument is argument and (d.access == HOST) is host]

    def has_pointer(self, argument: SSAValue) -> bool:
        """Whether a buffer is reached by its address, or by nothing but descriptors that the host makes."""
        accesses = [
            op.access.data if op.access is not None else "pointer"
            for op in self.kernel.walk()
            if isinstance(op, (tile.LoadOp, tile.StoreOp)) and op.buffer is argument
        ]
        return not accesses or any(access != HOST for access in accesses)

    @property
    def parameters(self) -> list[PrintedParameter]:
        """The parameters, in launch order. Strides are 64 bits wide, so that offsets are."""
        divisors = divisors_of(self.kernel)
        parameters: list[PrintedParameter] = []
        for number, (argument, label) in enumerate(zip(self.arguments, self.labels, strict=True)):
            if argument in self.buffers:
                parameters += self._buffer(number, argument, divisors[number])
            else:
                element = element_type(argument)
                annotation = "" if isinstance(argument.type, IndexType) else element.triton
                parameters.append(PrintedParameter(label, annotation, element.short, number))
        if self.kernel.timed is not None:
            parameters.append(PrintedParameter(tile_clock.PARAMETER, "", "*i64", len(self.labels), "times", divisor=16))
        return parameters

    def _buffer(self, number: int, argument: BlockArgument, divisors: Sequence[int]) -> list[PrintedParameter]:
        names, element = self.buffers[argument], element_type(argument)
        address, extents, strides = divisors[0], divisors[1 : 1 + len(names.sizes)], divisors[1 + len(names.sizes) :]
        parameters = [
            PrintedParameter(made.name, "", made.kind, number, "descriptor", 0, made.order, made.block, START)
            for made in self.descriptors_of(argument, host=True)
        ]
        pointed = self.has_pointer(argument)
        if pointed:
            parameters.insert(0, PrintedParameter(names.pointer, "", f"*{element.short}", number, divisor=address))
        for dim, size in enumerate(names.sizes):
            if not size.isdecimal():
                parameters.append(PrintedParameter(size, "", "i32", number, "size", dim, divisor=extents[dim]))
        for dim, stride in enumerate(names.strides):
            if pointed and not is_number(stride):
                parameters.append(PrintedParameter(stride, "int64", "i64", number, "stride", dim, divisor=strides[dim]))
        return parameters


def signature_of(module: ModuleOp, printer: Printer | None = None) -> Signature:
    """The signature of a module's kernel, whose names `printer` then knows. Raises CompileError for a module without
    exactly one kernel, and for names and buffers that Triton cannot have.
    """
    kernel = find_kernel(module)
    name = _function_name(kernel)
    printer = printer or Printer({}, set())
    printer.reserve({*RESERVED, *HELPERS, name})
    arguments = kernel.body.block.args
    labels = [printer.name(argument.name_hint or f"arg{argument.index}") for argument in arguments]
    buffers: dict[SSAValue, BufferNames] = {
        argument: buffer_names(label, argument.type)
        for argument, label in zip(arguments, labels, strict=True)
        if isinstance(argument.type, MemRefType)
    }
    strides = {buffer: names.strides for buffer, names in buffers.items()}
    return Signature(kernel, name, labels, buffers, find_descriptors(kernel, strides, printer.name))


def parameters_of(module: ModuleOp) -> tuple[str, list[PrintedParameter], dict[str, int]]:
    """The name, the parameters and the options (`num_warps`, `num_stages`, `maxnreg`) of a module's printed kernel.

    Raises CompileError, as `signature_of` does.
    """
    signature = signature_of(module)
    return signature.name, signature.parameters, signature.options


def _function_name(kernel: tile.KernelOp) -> str:
    name = kernel.sym_name.data.replace(".", "_")
    if not name.isidentifier() or name in RESERVED or name in HELPERS:
        raise CompileError(f"{kernel.sym_name.data!r} cannot be the name of a Triton kernel")
    return name


def is_number(text: str) -> bool:
    """Whether a size or stride is written as a number."""
    return text.lstrip("-").isdecimal()
