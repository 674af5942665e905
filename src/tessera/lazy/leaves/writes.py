"""Writes to torch tensors, counted: those that Tessera makes, and so those that somebody else made while queued work
was reading.

torch counts all writes to a tensor's memory in its version, which views share. Tessera adds its own there, and keeps
account of how many of them are its own: the rest is the program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tessera.errors import InputMutatedError
from tessera.lazy import promise
from tessera.lazy.leaves.leaf import Leaf

_MOST: Final = 1 << 16

_own: dict[int, int] = {}
"""By storage: the writes of Tessera, as far as there were streams to care."""


def note(tensor: torch.Tensor) -> None:
    """Tells torch that a tensor's memory was written to, or is going to be."""
    if promise.is_guarded():
        storage = tensor.untyped_storage().data_ptr()
        # Before torch's own count: who compares the two reads that one first.
        _own[storage] = _own.get(storage, 0) + 1
    torch.autograd.graph.increment_version(tensor)


def forget() -> None:
    """Begins to count anew, where much is counted. Called while nothing is queued."""
    if len(_own) > _MOST:
        _own.clear()


class Watch:
    """The torch tensors among some leaves that are about to be read."""

    __slots__ = ("_tensors",)

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._tensors: list[tuple[torch.Tensor, int, int]] = []
        for leaf in leaves:
            if leaf.version is not None and isinstance(leaf.owner, torch.Tensor):
                storage = leaf.owner.untyped_storage().data_ptr()
                self._tensors.append((leaf.owner, leaf.version, _own.get(storage, 0)))

    def refuse_mutated(self) -> None:
        """Raises InputMutatedError (E_INPUT_MUTATED) where the program wrote to one of them since: what was read may be
        either value. Tessera's own writes wait for those who read before.
        """
        for tensor, version, own in self._tensors:
            written = tensor._version - version
            if written > _own.get(tensor.untyped_storage().data_ptr(), 0) - own:
                raise InputMutatedError(
                    f"an input of shape {tuple(tensor.shape)} was written to while a stream was reading it",
                    hints=["stream.synchronize() before writing to the tensor", "or pass tensor.clone()"],
                )
