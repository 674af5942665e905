"""Leaves as torch tensors that share their memory."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from tessera.errors import ValueControlFlowError
from tessera.lazy.leaf import Leaf, Placeholder
from tessera.lazy.structure import Shape


@lru_cache(maxsize=256)
def _byte_array(nbytes: int) -> Any:
    return ctypes.c_char * nbytes


def to_torch(leaf: Leaf) -> torch.Tensor:
    """The torch tensor over a leaf's memory, which it keeps alive; of a scalar, a new tensor without dimensions.

    Results of Tessera are immutable by contract: whoever writes to the tensor changes what later expressions read.
    Raises ValueControlFlowError (E_VALUE_CONTROL_FLOW) for the argument of a function that is being traced.
    """
    if isinstance(leaf, Placeholder):
        raise unknown_values()
    structure = leaf.structure
    if structure.kind == "scalar":
        return torch.tensor(leaf.owner, dtype=leaf.dtype.torch)
    shape, strides = structure.shape, structure.strides
    if 0 in shape:
        return torch.empty(shape, dtype=leaf.dtype.torch)
    elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    memory = _byte_array(elements * leaf.dtype.itemsize).from_address(leaf.address)
    # ctypes objects take attributes; torch keeps the ctypes object, and that keeps the leaf's owner.
    memory.owner = leaf.owner
    flat = torch.frombuffer(memory, dtype=leaf.dtype.torch)
    return flat.as_strided(shape, _torch_strides(shape, strides))


def unknown_values() -> ValueControlFlowError:
    """The error for values that depend on the arguments of a function that is being traced."""
    return ValueControlFlowError(
        "values that depend on arguments are not known while their function is traced",
        hints=["keep the computation in operators, op.where instead of `if`", "or compute outside of the kernel"],
    )


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
