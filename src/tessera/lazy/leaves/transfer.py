"""Leaves moved from device to device."""

from __future__ import annotations

import torch

from tessera.errors import DeviceError, MemoryLimitError
from tessera.lazy.devices import is_cpu_memory, torch_device
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.structures import interning


def on_device(leaf: Leaf, device: str) -> Leaf:
    """The leaf with its elements on a device (a name as `lazy.devices` has it): itself where they are there already,
    the same memory where both devices read it ("cpu" and "interpreter"), else a copy.

    Raises DeviceError (E_DEVICE) where torch does not reach the device, MemoryLimitError (E_MEMORY_LIMIT) where its
    memory is full, and ValueControlFlowError (E_VALUE_CONTROL_FLOW) for the argument of a function that is traced.
    """
    if leaf.device == device:
        return leaf
    moved = leaf
    if not is_cpu_memory(leaf.device) or not is_cpu_memory(device):
        moved = from_torch(_copied(to_torch(leaf), device))
    structure = interning.buffer(moved.shape, moved.strides, moved.dtype, device)
    return Leaf(structure, moved.address, moved.owner, moved.version, moved.origin)


def _copied(tensor: torch.Tensor, device: str) -> torch.Tensor:
    try:
        return tensor.to(torch_device(device))
    except torch.OutOfMemoryError as error:
        raise MemoryLimitError(f"a tensor of {tensor.nbytes} bytes does not fit on {device}: {error}") from error
    except (AssertionError, RuntimeError) as error:  # what torch raises without CUDA, a driver, or such a GPU
        raise DeviceError(
            f"device {device} cannot be reached: {str(error).splitlines()[0]}",
            hints=['device="interpreter" checks kernels without a GPU', "python -m torch.utils.collect_env lists GPUs"],
        ) from error
