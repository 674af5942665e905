"""Leaves as torch tensors that share their memory, wherever it is."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from tessera.errors import ValueControlFlowError
from tessera.lazy import promise
from tessera.lazy.devices import is_cpu_memory, torch_device
from tessera.lazy.leaf import Leaf, Placeholder
from tessera.lazy.promise import Promise, settle
from tessera.lazy.structure import Shape, Structure


def to_torch(leaf: Leaf) -> torch.Tensor:
    """The torch tensor over a leaf's memory, which it keeps alive; of a scalar, a new tensor without dimensions.

    Waits for queued work that computes the values. Results of Tessera are immutable by contract: whoever writes to the
    tensor changes what later expressions read. Raises ValueControlFlowError (E_VALUE_CONTROL_FLOW) for the argument of
    a function that is being traced.
    """
    if isinstance(leaf, Placeholder):
        raise unknown_values()
    if leaf.version is not None or promise.guard is not None:
        settle((leaf,))
    return memory_of(leaf)


def memory_of(leaf: Leaf) -> torch.Tensor:
    """As `to_torch`, without waiting for values that are on their way."""
    structure = leaf.structure
    if structure.kind == "scalar":
        return torch.tensor(leaf.owner, dtype=leaf.dtype.torch)
    if not is_cpu_memory(leaf.device):
        return _on_device(leaf)
    bytes_type, dtype, view = _layout_of(structure)
    if bytes_type is None:
        return torch.empty(structure.shape, dtype=dtype)
    memory = bytes_type.from_address(leaf.address)
    # ctypes objects take attributes; torch keeps the ctypes object, and that keeps the leaf's owner.
    memory.owner = leaf.owner
    flat = torch.frombuffer(memory, dtype=dtype)
    return flat if view is None else flat.as_strided(*view)


def _on_device(leaf: Leaf) -> torch.Tensor:
    """A tensor over the storage of the torch tensor that owns the leaf's memory."""
    dtype, shape = leaf.dtype.torch, leaf.shape
    made = torch.empty(0, dtype=dtype, device=torch_device(leaf.device))
    if 0 in shape:
        return made.new_empty(shape)
    owner: Any = leaf.owner.memory if isinstance(leaf.owner, Promise) else leaf.owner
    storage = owner.untyped_storage()
    first = (leaf.address - storage.data_ptr()) // leaf.dtype.itemsize
    return made.set_(storage, first, shape, _torch_strides(shape, leaf.strides))


def unknown_values() -> ValueControlFlowError:
    """The error for values that depend on the arguments of a function that is being traced."""
    return ValueControlFlowError(
        "values that depend on arguments are not known while their function is traced",
        hints=["keep the computation in operators, op.where instead of `if`", "or compute outside of the kernel"],
    )


@lru_cache(maxsize=1024)
def _layout_of(structure: Structure) -> tuple[Any, torch.dtype, tuple[Shape, Shape] | None]:
    """The ctypes array over a buffer's bytes, None where it has none; its elements' dtype; and the shape and strides to
    read them with, None where they are one line.
    """
    shape, strides, dtype = structure.shape, structure.strides, structure.dtype
    if 0 in shape:
        return None, dtype.torch, None
    elements = 1 + sum([(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)])
    view = (shape, _torch_strides(shape, strides))
    return ctypes.c_char * (elements * dtype.itemsize), dtype.torch, None if view == ((elements,), (1,)) else view


def _torch_strides(shape: Shape, strides: Shape) -> Shape:
    """Strides with those along extents of 1, which a leaf does not keep, as torch has them in a contiguous tensor."""
    result = list(strides)
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            result[axis] = step
        else:
            step = shape[axis] * strides[axis]
    return tuple(result)
