"""The attribute `divisors` of `tessera.tile.kernel`: what a kernel may rely on of its arguments.

A buffer of rank r has 1 + 2r numbers, in the order of its descriptor: what divides its address in bytes, its r extents
and its r strides in elements. A scalar has none. 1 promises nothing, as no attribute does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, MemRefType, ModuleOp, StringAttr, i64
from xdsl.ir import Attribute, BlockArgument

from tessera.ir.tile.access import HOST_DESCRIPTOR, LoadOp, StoreOp, integers
from tessera.ir.tile.operations import KernelOp, find_kernel

Divisors: TypeAlias = tuple[tuple[int, ...], ...]
"""The numbers of each argument of a kernel."""


def divisors_of(kernel: KernelOp) -> Divisors:
    """What a kernel relies on; ones where it does not say."""
    if kernel.divisors is None:
        return uniform(kernel, 1, 1)
    return tuple([integers(cast("DenseArrayBase", numbers)) for numbers in kernel.divisors])


def uniform(kernel: KernelOp, address: int, others: int) -> Divisors:
    """The same for all buffers of a kernel: `address` divides their addresses, `others` their extents and strides."""
    ranks = [_rank(argument.type) for argument in kernel.body.block.args]
    return tuple([() if rank is None else (address, *[others] * (2 * rank)) for rank in ranks])


def divisors_attribute(divisors: Divisors) -> ArrayAttr[Attribute]:
    """The attribute that says so."""
    return ArrayAttr([DenseArrayBase.from_list(i64, numbers) for numbers in divisors])


def promising(module: ModuleOp, divisors: Sequence[Sequence[int]], note: str = "") -> ModuleOp:
    """A copy of a module whose kernel relies on `divisors`, with a `note` for readers of what it becomes."""
    copy = module.clone()
    kernel = find_kernel(copy)
    kernel.attributes["divisors"] = divisors_attribute(tuple(map(tuple, divisors)))
    if note:
        kernel.attributes["note"] = StringAttr(note)
    return copy


def free_words(kind: Attribute) -> tuple[bool, ...] | None:
    """Which extents and strides of an argument's type are known at run time only; None for a scalar."""
    if not isinstance(kind, MemRefType):
        return None
    strides = kind.get_strides() or [None] * kind.get_num_dims()
    return (*[extent < 0 for extent in kind.get_shape()], *[stride is None for stride in strides])


def described_arguments(kernel: KernelOp) -> frozenset[int]:
    """The arguments that a kernel reaches by descriptors that whoever launches it makes: those take aligned memory."""
    accesses = [op for op in kernel.walk() if isinstance(op, LoadOp | StoreOp)]
    return frozenset(
        [
            op.buffer.index
            for op in accesses
            if op.access is not None and op.access.data == HOST_DESCRIPTOR and isinstance(op.buffer, BlockArgument)
        ]
    )


def _rank(kind: Attribute) -> int | None:
    return kind.get_num_dims() if isinstance(kind, MemRefType) else None
