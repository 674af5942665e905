"""Descriptors: buffers whose tiles the copy engine of a GPU moves (TMA), as kernels make them or are handed them.

A descriptor walks its buffer's dimensions with the one of stride 1 last, and moves blocks of one shape. Offsets into it
have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, SSAValue

from tessera.backend.triton.printing.printer import Printer, shape_of
from tessera.backend.triton.printing.types import TritonElement, element_of
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.access import HOST_DESCRIPTOR

HOST = HOST_DESCRIPTOR


@dataclass(frozen=True)
class Descriptor:
    """One descriptor of a kernel: its name there, the kernel argument of its buffer, the buffer's dimensions in the
    order that it walks them, and the `block` that it moves, in that order.
    """

    name: str
    argument: BlockArgument
    access: str
    order: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def element(self) -> TritonElement:
        """The element type of the buffer."""
        return element_of(self.argument.type.element_type)  # type: ignore[attr-defined]

    @property
    def kind(self) -> str:
        """Triton's name of the type at a launch, for one that the host makes."""
        return f"tensordesc<{self.element.short}[{','.join(map(str, self.block))}]>"


Key = tuple[SSAValue, str, tuple[int, ...]]
"""What makes two descriptors the same: buffer, access, block."""


def find_descriptors(
    kernel: tile.KernelOp, strides: Mapping[SSAValue, Sequence[str]], fresh: Callable[[str], str]
) -> dict[Key, Descriptor]:
    """The descriptors that a kernel's loads and stores name. `strides` gives each buffer's as text, "1" where that is
    promised. Raises CompileError for a buffer that cannot have one.
    """
    found: dict[Key, Descriptor] = {}
    for op in kernel.walk():
        if not isinstance(op, (tile.LoadOp, tile.StoreOp)) or op.access is None:
            continue
        buffer = op.buffer
        if not isinstance(buffer, BlockArgument) or buffer not in strides:
            raise CompileError("descriptors are of a kernel's arguments")
        order = _order(strides[buffer])
        shape = shape_of(op.tile if isinstance(op, tile.LoadOp) else op.value)
        dims = tile.integers(op.dims)
        block = tuple(shape[dims.index(dim)] if dim in dims else 1 for dim in order)
        key = (buffer, op.access.data, block)
        if key not in found:
            found[key] = Descriptor(fresh(f"{buffer.name_hint or 'x'}_desc"), buffer, op.access.data, order, block)
    return found


def key_of(op: tile.LoadOp | tile.StoreOp, descriptors: Mapping[Key, Descriptor]) -> Descriptor:
    """The descriptor that a load or store goes through."""
    assert op.access is not None
    shape, dims = shape_of(op.tile if isinstance(op, tile.LoadOp) else op.value), tile.integers(op.dims)
    sizes = {dim: shape[axis] for axis, dim in enumerate(dims) if dim >= 0}
    for (buffer, access, block), descriptor in descriptors.items():
        wanted = tuple(sizes.get(dim, 1) for dim in descriptor.order)
        if buffer is op.buffer and access == op.access.data and block == wanted:
            return descriptor
    raise CompileError("a descriptor that its kernel does not have")


def _order(strides: Sequence[str]) -> tuple[int, ...]:
    if "1" not in strides:
        raise CompileError(
            "a descriptor needs a dimension whose stride is promised to be 1", hints=["reach the buffer by pointers"]
        )
    unit = len(strides) - 1 - list(reversed(strides)).index("1")
    return (*(dim for dim in range(len(strides)) if dim != unit), unit)


def made(descriptor: Descriptor, pointer: str, sizes: Sequence[str], strides: Sequence[str]) -> list[str]:
    """The arguments of the call that makes a descriptor in the kernel."""
    return [
        pointer,
        f"shape=[{', '.join(sizes[dim] for dim in descriptor.order)}]",
        f"strides=[{', '.join(strides[dim] for dim in descriptor.order)}]",
        f"block_shape=[{', '.join(map(str, descriptor.block))}]",
    ]


def offsets(p: Printer, descriptor: Descriptor, indices: Sequence[SSAValue]) -> str:
    """Where a block begins, as the list that a descriptor's methods take."""
    return f"[{', '.join(_narrow(p, indices[dim]) for dim in descriptor.order)}]"


def _narrow(p: Printer, index: SSAValue) -> str:
    text = p.text(index)
    return text if text.isdecimal() or _counts_from_constant(index) else f"tl.cast({text}, tl.int32)"


def _counts_from_constant(index: SSAValue) -> bool:
    """Whether an index is that of a loop from a number up to an extent, which has 32 bits."""
    loop = index.block.parent_op() if isinstance(index, BlockArgument) else None
    if not isinstance(loop, tile.ForOp) or not isinstance(index, BlockArgument) or index.index:
        return False
    lower = loop.lower.owner
    return isinstance(lower, arith.ConstantOp) and isinstance(lower.value, IntegerAttr)


def loaded(descriptor: Descriptor, op: tile.LoadOp, text: str) -> str:
    """A loaded block as the tile that a load gives."""
    shape, dims = shape_of(op.tile), tile.integers(op.dims)
    kept = [dim for dim in descriptor.order if dim in dims]
    text = _reshaped(text, descriptor.block, tuple(shape[dims.index(dim)] for dim in kept))
    order = [kept.index(dim) for dim in dims if dim >= 0]
    text = _permuted(text, order)
    return _reshaped(text, tuple(shape[dims.index(dim)] for dim in dims if dim >= 0), shape)


def stored(descriptor: Descriptor, op: tile.StoreOp, text: str) -> str:
    """A tile as the block that a store through a descriptor takes."""
    shape, dims = shape_of(op.value), tile.integers(op.dims)
    walked = [dim for dim in dims if dim >= 0]
    text = _reshaped(text, shape, tuple(shape[dims.index(dim)] for dim in walked))
    kept = [dim for dim in descriptor.order if dim in dims]
    text = _permuted(text, [walked.index(dim) for dim in kept])
    return _reshaped(text, tuple(shape[dims.index(dim)] for dim in kept), descriptor.block)


def _reshaped(text: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return text if shape == wanted else f"tl.reshape({text}, {wanted})"


def _permuted(text: str, order: Sequence[int]) -> str:
    return text if list(order) == sorted(order) else f"tl.permute({text}, {tuple(order)})"
