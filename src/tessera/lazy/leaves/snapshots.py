"""Copies of numpy arrays as they were: memory that nobody else writes to.

Numpy counts no changes of an array, and to look for them at every evaluation would take as long as reading it. So a
constant made of an array (`constants.py`) has a copy, which is looked at again only when the array is marked again:
while the two are equal, bit by bit, it serves all constants made of that array. It goes with the array.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy
import torch

from tessera.errors import MemoryLimitError
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_plain_torch
from tessera.lazy.structures.structure import Structure
from tessera.system import forks

_Copies = dict[tuple[int, Structure], torch.Tensor]

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_known: dict[int, tuple[weakref.ref[Any], _Copies]] = {}
"""By `id`: arrays that live, and copies of their views by address and structure."""
_lock = forks.recursive_lock()


def is_writeable(array: Any) -> bool:
    """Whether an array's memory can be written to, by way of it or of an array that it is a view of."""
    while isinstance(array, numpy.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False


def snapshot(leaf: Leaf) -> Leaf:
    """A leaf of the same elements as they are now, where an array owns the memory; of an unchanged one the same again.

    Raises MemoryLimitError (E_MEMORY_LIMIT) where there is no memory for a copy.
    """
    present, key = memory_of(leaf), (leaf.address, leaf.structure)
    with _lock:
        copies = _copies_of(leaf.owner)
        copy = copies.get(key)
        if copy is None or not torch.equal(_bits(copy), _bits(present)):
            copies.pop(key, None)
            copy = copies[key] = _copied(present)
    return from_plain_torch(copy)


def _copies_of(array: Any) -> _Copies:
    number = id(array)

    def forget(gone: weakref.ref[Any]) -> None:
        if number in _known and _known[number][0] is gone:
            del _known[number]

    known = _known.get(number)
    if known is None or known[0]() is not array:
        known = _known[number] = weakref.ref(array, forget), {}
    return known[1]


def _copied(present: torch.Tensor) -> torch.Tensor:
    try:
        memory = torch.empty_like(present)
    except RuntimeError as error:  # of an empty tensor on the CPU there is no other
        nbytes = present.numel() * present.element_size()
        raise MemoryLimitError(
            f"constant: no memory for a copy of an array of {nbytes} bytes",
            hints=["array.setflags(write=False) says that nobody writes to it: then it is not copied"],
        ) from error
    return memory.copy_(present)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers, of which all are equal to themselves."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(_INTEGERS[real.element_size()])
