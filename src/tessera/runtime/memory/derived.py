"""Derived constants: what plans read in place of a constant, made of it once and kept with it
(`lazy/leaves/constants.py`).

    W [K, N]  --Derivation(panels of 32)-->  W' [N / 32, K, 32]

A `Form` says what is made. A `Derivation` says of which view of a leaf; it stands in a plan as a slot of its own. The
copy is made at the first call that needs it, and anew after a torch tensor was written to. Calls in progress keep the
copy that they read.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

import torch

from tessera.dtypes import DType
from tessera.lazy.leaves.constants import ConstantCopy, ConstantLeaf
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.symbols.integers import symbolic_in
from tessera.runtime.memory import buffers
from tessera.runtime.memory.buffers import Buffer
from tessera.system import forks

Shape: TypeAlias = tuple[int, ...]


class Form(Hashable, Protocol):
    """What is made of a constant. Equal forms of equal views are one copy."""

    def nbytes(self, shape: Shape, dtype: DType) -> int:
        """The size of the copy of a tensor of this shape."""

    def fill(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Writes the copy of `source` into the bytes of `target` (uint8, one dimension), every one of them."""


class ReadInstead(Protocol):
    """What a plan reads instead of a leaf."""

    def of(self, leaf: Leaf) -> Buffer:
        """The memory that is read."""


class Derivation:
    """The form of one view of a leaf: `offset_bytes` from the leaf's first element, `strides` in elements.

    Make them with `derivation`: equal ones are one object.
    """

    __slots__ = ("__weakref__", "dtype", "form", "offset_bytes", "shape", "strides", "whole")

    def __init__(self, form: Form, dtype: DType, shape: Shape, strides: Shape, offset_bytes: int) -> None:
        self.form, self.dtype, self.shape, self.strides = form, dtype, shape, strides
        self.offset_bytes = offset_bytes
        self.whole: Derivation = self if not offset_bytes else derivation(form, dtype, shape, strides)

    @property
    def depends_on_sizes(self) -> bool:
        """Whether the view, or what is made of it, is one of symbolic sizes (`lazy/symbols`)."""
        form: Any = self.form
        made = [getattr(form, field.name) for field in fields(form)] if is_dataclass(form) else []
        return any(symbolic_in([self.shape, self.strides, self.offset_bytes, made]))

    @property
    def nbytes(self) -> int:
        """The size of the copy."""
        return self.form.nbytes(self.shape, self.dtype)

    def of(self, leaf: Leaf) -> Buffer:
        """The copy, made if there is none of the leaf's present version. Raises MemoryLimitError (E_MEMORY_LIMIT).

        Of a leaf that is no constant (a gradient's, say) it is made for this call.
        """
        if not isinstance(leaf, ConstantLeaf):
            return self._made(leaf)
        # By address, since all views of a constant share its copies.
        key = self.whole, leaf.address + self.offset_bytes
        copy = leaf.copies.made.get(key)
        if copy is None or copy.version != leaf.version:
            copy = self._kept(leaf, key)
        memory: Buffer = copy.memory
        return memory

    def _kept(self, leaf: ConstantLeaf, key: tuple[Derivation, int]) -> ConstantCopy:
        copies = leaf.copies
        with copies.lock:
            copy = copies.made.get(key)
            if copy is None or copy.version != leaf.version:
                # The old one goes first: there is never memory for two of them.
                copies.made.pop(key, None)
                del copy
                copy = copies.made[key] = ConstantCopy(self._made(leaf), leaf.version)
            return copy

    def _made(self, leaf: Leaf) -> Buffer:
        buffer = buffers.allocate(self.nbytes)
        if buffer.nbytes:
            self.form.fill(self._source(leaf), torch.frombuffer(buffer.memory(), dtype=torch.uint8))
        return buffer

    def _source(self, leaf: Leaf) -> torch.Tensor:
        """The view. Torch walks no memory backwards: what does is read forwards, and turned around."""
        backwards = [dim for dim, stride in enumerate(self.strides) if stride < 0]
        structure = interning.buffer(self.shape, tuple(map(abs, self.strides)), self.dtype)
        last = sum((self.shape[dim] - 1) * self.strides[dim] for dim in backwards) if 0 not in self.shape else 0
        first = leaf.address + self.offset_bytes + last * self.dtype.itemsize
        source = memory_of(Leaf(structure, first, leaf.owner))
        if backwards and source.element_size() == 1:  # torch turns no 8-bit floats around, but their bits
            return source.view(torch.uint8).flip(backwards).view(source.dtype)
        return source.flip(backwards) if backwards else source


_Key: TypeAlias = tuple[Form, DType, Shape, Shape, int]

_derivations: Final[WeakValueDictionary[_Key, Derivation]] = WeakValueDictionary()
"""Those that a plan reads or a copy was made by: while one of them is left, no second copy is made."""
_lock: Final = forks.recursive_lock()


def derivation(form: Form, dtype: DType, shape: Shape, strides: Shape, offset_bytes: int = 0) -> Derivation:
    """The derivation of a view: one object for equal arguments, by which copies are found."""
    key = (form, dtype, shape, strides, offset_bytes)
    with _lock:
        known = _derivations.get(key)
        if known is None:
            known = _derivations[key] = Derivation(form, dtype, shape, strides, offset_bytes)
        return known
