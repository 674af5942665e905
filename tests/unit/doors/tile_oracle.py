"""Pending tensors computed by the Tile IR interpreter: what their kernels say, without a backend."""

from __future__ import annotations

import torch

from tessera.compiler import planning
from tessera.compiler.bind.arrays import Storage, View
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.device import compilers
from tessera.handle import Tensor
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.lazy.leaves.export import to_torch


def interpreted(tensor: Tensor) -> torch.Tensor:
    """The value of a pending tensor whose last kernel writes it as a whole. Memory is poisoned."""
    structure, leaves = tensor.state
    compiler = compilers.kernel_compiler()
    launches = launches_of(planning.program_of(structure), structure, compiler)
    memory: dict[Storage, torch.Tensor] = {}

    def argument(view: View, words: tuple[int, ...]) -> torch.Tensor | int | float:
        storage = view.storage
        if view.is_scalar:
            assert storage.leaf is not None
            owner: int | float = leaves[storage.leaf].owner
            return owner
        if view.is_counted:  # nothing may be read there
            return torch.empty(0, dtype=torch.int64).as_strided((0,), (1,)).new_full(words[: len(words) // 2], -77)
        if storage not in memory:
            memory[storage] = (
                torch.full((storage.nbytes,), 0xFF, dtype=torch.uint8).view(view.dtype.torch)
                if storage.leaf is None
                else to_torch(leaves[storage.leaf])
            )
        whole = memory[storage]
        extents, strides = words[: len(words) // 2], words[len(words) // 2 :]
        return whole.as_strided(extents, strides, whole.storage_offset() + view.offset_bytes // view.dtype.itemsize)

    for launch in launches:
        subject = compiler.subject(launch.call)
        module = compiler.tile_ir(subject, launch.schedule)
        run_kernel(module, [argument(view, words) for view, words in launch.call.arguments])
    result = launches[-1].call.arguments[-1][0]
    return memory[result.storage].as_strided(result.shape, result.strides).reshape(tensor.shape)
