"""Constants: leaves whose contents stay, of which kernels may keep copies in a layout of their own.

A copy (weights packed into panels, the spectrum of a filter) is a function of the contents and is made once, by
`runtime.derived`. All views of a constant share its copies, and so do all constants made of the same torch tensor or
numpy array, which go with it.

Torch counts what is written to a tensor, so that a changed one is seen. Numpy counts nothing, and to look for changes
at every evaluation would take as long as reading the weights: a constant has the elements that an array holds when it
is marked, in memory of its own unless the array cannot be written to.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from tessera.lazy.leaves.export import counting_writes
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.snapshots import is_writeable, snapshot
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.system import forks


class ConstantCopy(NamedTuple):
    """One copy: the memory that holds it, and the version of the contents that it was made of."""

    memory: Any
    version: int | None


class ConstantCopies:
    """The copies of one constant by what they are. `lock` is held while one is made: the second thread waits for it."""

    __slots__ = ("lock", "made")

    def __init__(self) -> None:
        self.lock = forks.lock()
        self.made: dict[Any, ConstantCopy] = {}


class ConstantLeaf(Leaf):
    """A buffer whose contents are not expected to change. A torch tensor that is changed all the same has a new
    version, after which its copies are made anew.
    """

    __slots__ = ("copies",)

    def __init__(
        self,
        structure: Structure,
        address: int,
        owner: Any,
        version: int | None = None,
        copies: ConstantCopies | None = None,
    ) -> None:
        super().__init__(structure, address, owner, version)
        self.copies = ConstantCopies() if copies is None else copies

    def view(self, structure: Structure, address: int) -> ConstantLeaf:
        """Another leaf over the same memory, with the same copies."""
        return ConstantLeaf(structure, address, self.owner, self.version, self.copies)

    def refresh(self) -> None:
        """Takes the contents as they are now."""
        if self.version is not None:
            self.version = self.owner._version


def constant_leaf(leaf: Leaf) -> ConstantLeaf:
    """The constant over a leaf's memory, or over a copy of it where that is a numpy array's.

    Raises MemoryLimitError (E_MEMORY_LIMIT) where there is no memory for that.
    """
    if isinstance(leaf, ConstantLeaf):
        return leaf
    if is_writeable(leaf.owner):
        leaf = snapshot(leaf)
    structure = interning.buffer(leaf.shape, leaf.strides, leaf.dtype, leaf.device, frozen=True)
    return ConstantLeaf(structure, leaf.address, _holder(leaf.owner), leaf.version, _copies_of(leaf.owner))


def _holder(owner: Any) -> Any:
    """What keeps the memory of a constant: a tensor may be given other memory (`module.to(...)` does that to its
    parameters), an alias of it keeps what it has, and counts the same writes.
    """
    if not isinstance(owner, torch.Tensor) or owner.is_inference():
        return owner
    with counting_writes():
        return owner.detach()


_known: dict[int, tuple[weakref.ref[Any], ConstantCopies]] = {}
"""By `id`: owners that live, and their copies."""
_lock = forks.recursive_lock()
"""Held while one is entered, so that two threads that mark one tensor share its copies. A collection of garbage that
starts there may call `forget`, on the same thread.
"""


def _copies_of(owner: Any) -> ConstantCopies:
    """The copies that belong to a tensor or array as long as it lives; new ones for what has no weak references."""
    number = id(owner)

    def forget(gone: weakref.ref[Any]) -> None:
        if number in _known and _known[number][0] is gone:
            del _known[number]

    with _lock:
        known = _known.get(number)
        if known is not None and known[0]() is owner:
            return known[1]
        copies = ConstantCopies()
        with suppress(TypeError):
            _known[number] = weakref.ref(owner, forget), copies
        return copies
