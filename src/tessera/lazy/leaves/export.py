"""Leaves as torch tensors: `to_torch` for code of Tessera's own, which does not write, and `exported` for users."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from tessera.errors import ValueControlFlowError
from tessera.lazy import promise
from tessera.lazy.devices import is_cpu_memory, is_mesh, torch_device
from tessera.lazy.leaves.leaf import Attached, Leaf, Placeholder
from tessera.lazy.promise import Promise, settle
from tessera.lazy.structures.structure import Shape, Structure


def to_torch(leaf: Leaf) -> torch.Tensor:
    """The torch tensor over a leaf's memory, which it keeps alive; of a scalar, a new tensor without dimensions.

    Nobody sees what is written to it. Waits for queued work that computes the values. Raises ValueControlFlowError
    (E_VALUE_CONTROL_FLOW) for the argument of a function that is being traced.
    """
    if isinstance(leaf, Placeholder):
        raise unknown_values()
    if type(leaf) is Attached:
        return leaf.tensor.detach()  # type: ignore[no-any-return]
    if leaf.version is not None or promise.guard is not None:
        settle((leaf,))
    return memory_of(leaf)


def exported(leaf: Leaf) -> torch.Tensor:
    """The torch tensor that a user gets: over a leaf's memory where the leaf's version counts writes to it, else a
    copy. Raises and waits as `to_torch` does.
    """
    if type(leaf) is Attached:
        return leaf.tensor  # type: ignore[no-any-return]
    if leaf.version is None or 0 in leaf.structure.shape:
        return to_torch(leaf).clone()
    if isinstance(leaf, Placeholder):
        raise unknown_values()
    settle((leaf,))
    if not torch.is_inference_mode_enabled():
        return _shared(leaf)
    with counting_writes():
        return _shared(leaf)


def counting_writes() -> AbstractContextManager[object]:
    """Where torch counts writes to the tensors and views that are made: under `torch.inference_mode` it does not."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _shared(leaf: Leaf) -> torch.Tensor:
    owner = leaf.owner
    if isinstance(owner, Promise):
        owner = owner.share()
    if isinstance(owner, torch.Tensor):
        # What another thread made under inference mode has no version.
        return to_torch(leaf).clone() if owner.is_inference() else _within(leaf, owner.detach())
    shape, strides, dtype = _walk_of(leaf.structure)
    elements: torch.Tensor
    elements, start = owner.share(dtype)
    if elements.dtype != dtype:
        elements = elements.view(dtype)
    elif shape == elements.shape and strides == (1,):
        return elements.detach()
    return elements.as_strided(shape, strides, (leaf.address - start) // leaf.structure.dtype.itemsize)


def _within(leaf: Leaf, tensor: torch.Tensor) -> torch.Tensor:
    """A leaf's elements as a view of a tensor in the same storage. Views of views have one version."""
    shape, strides, dtype = _walk_of(leaf.structure)
    storage = tensor.untyped_storage()
    if tensor.dtype != dtype:  # results on GPUs are bytes; complex elements may be read as their parts
        tensor = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0).view(dtype)
    return tensor.as_strided(shape, strides, (leaf.address - storage.data_ptr()) // leaf.dtype.itemsize)


@lru_cache(maxsize=1024)
def _walk_of(structure: Structure) -> tuple[Shape, Shape, torch.dtype]:
    """Shape, strides and dtype of a buffer as torch has them."""
    return structure.shape, _torch_strides(structure.shape, structure.strides), structure.dtype.torch


def memory_of(leaf: Leaf) -> torch.Tensor:
    """As `to_torch`, without waiting for values that are on their way."""
    structure = leaf.structure
    if structure.kind == "scalar":
        return torch.tensor(leaf.owner, dtype=leaf.dtype.torch, device="cpu")
    if not is_cpu_memory(leaf.device):
        return _on_device(leaf)
    bytes_type, dtype, view = _layout_of(structure)
    if bytes_type is None:
        return torch.empty(structure.shape, dtype=dtype, device="cpu")
    memory = bytes_type.from_address(leaf.address)
    # ctypes objects take attributes; torch keeps the ctypes object, and that keeps the leaf's owner.
    memory.owner = leaf.owner
    flat = torch.frombuffer(memory, dtype=dtype)
    return flat if view is None else flat.as_strided(*view)


def _on_device(leaf: Leaf) -> torch.Tensor:
    """A tensor over the storage of the torch tensor that owns the leaf's memory; the whole of one that is shared out
    over a mesh, a new tensor which its ranks bring together.
    """
    if is_mesh(leaf.device):
        settle([leaf])
        shards = leaf.owner.memory if isinstance(leaf.owner, Promise) else leaf.owner
        whole: torch.Tensor = shards.whole()
        return whole
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
