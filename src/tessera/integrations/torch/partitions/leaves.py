"""Leaves of a call's inputs, parameters that stay among them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tessera.lazy.leaves.constants import ConstantLeaf, constant_leaf
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch

_constants: Any = WeakTensorKeyDictionary()
"""The leaf of each parameter that some graph has frozen, and its strides: graphs share what is packed of it."""


class FrozenInput:
    """An input of a graph that is the same tensor in every call: a constant, whose packed copies stay with it.

    Its contents are as torch counts writes: `copy_`, `load_state_dict` and the like are seen, and so is other memory
    (`parameter.data = ...`). Writes to `parameter.data` itself are not counted by torch.
    """

    __slots__ = ("_leaf", "_strides", "_tensor")

    def __init__(self) -> None:
        self._tensor: weakref.ref[torch.Tensor] | None = None
        self._leaf: Leaf | None = None
        self._strides: tuple[int, ...] = ()

    def leaf(self, tensor: torch.Tensor) -> Leaf:
        """The leaf of the tensor, with its contents as they are now."""
        known = self._leaf
        if (
            known is not None
            and self._tensor is not None
            and self._tensor() is tensor
            and known.address == tensor.data_ptr()
            and self._strides == tensor.stride()
        ):
            if type(known) is ConstantLeaf:
                known.refresh()
            return known
        self._tensor, self._strides = weakref.ref(tensor), tensor.stride()
        self._leaf = made = _constant(tensor)
        return made


def _constant(tensor: torch.Tensor) -> Leaf:
    """The leaf of a parameter in its present memory; no constant where torch does not count writes."""
    walk = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    before, known = _constants.get(tensor, (None, None))
    if isinstance(known, Leaf) and before == walk:
        if type(known) is ConstantLeaf:
            known.refresh()
        return known
    # The alias shares memory and version with the parameter, and does not keep it alive.
    found = from_torch(tensor.detach())
    made = found if found.version is None else constant_leaf(found)
    _constants[tensor] = walk, made
    return made
