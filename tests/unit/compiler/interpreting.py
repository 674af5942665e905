"""Running the kernel of a pending tensor by the interpreter of Tile IR, on the arguments that a plan would give it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from tessera.compiler import planning
from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.device import compilers
from tessera.handle import Tensor
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.interpreter.memory import allocate
from tessera.ir.verification import verify
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf

SPARE = 3
"""Times its size that memory is larger than a tensor: windows that overlap name more elements than there are."""


def interpreted(tensor: Tensor, seed: int = 0) -> torch.Tensor:
    """What the interpreter makes of the one kernel of `tensor`, its shares in any order, in poisoned memory."""
    structure = tensor.structure
    compiler = compilers.kernel_compiler()
    (launch,) = launches_of(planning.program_of(structure), structure, compiler)
    module = compiler.tile_ir(launch.choice.subject, launch.schedule)
    verify(module)
    arguments = [_argument(view, words, tensor.leaves) for view, words in launch.call.arguments]
    run_kernel(module, arguments, partition=random.Random(seed))
    view, _ = launch.call.arguments[-1]
    result = arguments[-1]
    assert isinstance(result, torch.Tensor)
    whole = torch.as_strided(result, view.shape, view.strides, 0)
    # A root may be a view of what the kernel wrote, as of an image whose channels are turned to the front.
    return whole if whole.shape == tensor.shape else whole.permute(0, 3, 1, 2)


def _argument(view: View, words: Sequence[int], leaves: Sequence[Leaf]) -> torch.Tensor | float:
    rank = len(words) // 2
    extents, strides = words[:rank], words[rank:]
    number = view.storage.leaf
    if number is None:
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(view.shape, view.strides, strict=True))
        return allocate((size,), view.dtype.torch).as_strided(extents, strides)
    leaf = leaves[number]
    if view.is_scalar:
        return float(memory_of(leaf))
    made = view.storage.derivation
    if made is not None:
        source = memory_of(leaf).as_strided(made.shape, made.strides)
        packed = torch.empty(made.form.nbytes(made.shape, made.dtype), dtype=torch.uint8)
        made.form.fill(source, packed)
        size = packed.numel() // max(1, torch.Size(extents).numel())
        dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
        return packed.view(dtype).as_strided(extents, strides)
    own = memory_of(leaf)
    roomy = torch.zeros(SPARE * own.numel() + (1 << 16), dtype=own.dtype)
    copy = roomy.as_strided(own.shape, own.stride())
    copy.copy_(own)
    return roomy.as_strided(extents, strides, view.offset_bytes // own.element_size())
