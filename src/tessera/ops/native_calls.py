"""When a call of a library is so small that a routine of Tessera's own does it (`backend/llvm/native/calls_ir.py`).

A rule looks at the operands of a call, which are tensors in memory, and names the routine with its words, or says None:
then torch does it. It never changes what comes out, and what is out of range torch is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch

from tessera.lazy.structures.structure import Shape

MOST_BYTES: Final = 1 << 18
"""What one thread moves in the time of a call of torch."""


class NativeCall(NamedTuple):
    """A routine and its words, which come behind those of the operands."""

    routine: str
    words: tuple[int, ...]


class TensorInMemory(Protocol):
    """A tensor in memory; strides in elements."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def strides(self) -> Shape: ...


NativeRule: TypeAlias = Callable[
    [Sequence[TensorInMemory], Sequence[TensorInMemory], Mapping[str, Any]], NativeCall | None
]
"""(inputs, outputs, attributes) -> the call; None where the library makes it."""


def never(inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Mapping[str, Any]) -> None:
    """The rule of calls that are the library's always."""


def are_contiguous(operands: Sequence[TensorInMemory]) -> bool:
    """Whether the elements of all lie one behind the other, in order."""
    for operand in operands:
        step = 1
        for extent, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
    return True
