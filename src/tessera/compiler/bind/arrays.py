"""Calls: a kernel applied to tensors, which lie somewhere, over its merged axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.runtime.memory.derived import Derivation
from tessera.scheduling.binding.arrays import ShapedArrays
from tessera.scheduling.binding.axes import Strides
from tessera.scheduling.lowering.spec import Argument

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Storage:
    """Memory of the plan: a leaf's (`leaf` is its number), a temporary, or a result.

    `guests` are temporaries that lie in the memory of a result, as they are dead before it is written. `frozen` says
    that a leaf's contents stay; with `derivation` this is a copy made of it, and no memory of the leaf's own.
    """

    nbytes: int
    leaf: int | None = None
    first: int = -1
    last: int = -1
    slot: int = -1
    offset: int = 0
    guests: tuple[Storage, ...] = ()
    frozen: bool = False
    derivation: Derivation | None = None


class View(NamedTuple):
    """A tensor: where it lies, in elements."""

    storage: Storage
    dtype: DType
    shape: Shape
    strides: Strides
    offset_bytes: int = 0
    is_scalar: bool = False
    is_counted: bool = False
    """Whether elements are their row-major numbers, of which none lies in memory: the shape and strides say it all."""

    @property
    def is_backwards(self) -> bool:
        """Whether memory is walked backwards along a dimension, which torch cannot do."""
        return any([stride < 0 for stride in self.strides])  # noqa: C419 - on the path of binding


class Call(NamedTuple):
    """A kernel of the program applied to arrays: what is scheduled, tuned and compiled."""

    item: KernelItem
    arguments: tuple[tuple[View, tuple[int, ...]], ...]
    """Each argument's view and the extents and strides that its descriptor holds."""
    shaped: ShapedArrays


def over_others(call: Call, others: Mapping[int, tuple[Argument, View, tuple[int, ...]]]) -> Call:
    """The call over other memory: for some arguments what the kernel takes them for, the view, and the words of its
    descriptor.
    """
    arguments, kinds = list(call.arguments), list(call.shaped.pattern.arguments)
    for index, (kind, view, words) in others.items():
        arguments[index], kinds[index] = (view, words), kind
    pattern = replace(call.shaped.pattern, arguments=tuple(kinds))
    return Call(call.item, tuple(arguments), call.shaped._replace(pattern=pattern))
