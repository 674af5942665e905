"""Images with a whole number of places for each one, taken apart so that nothing is looked up: places that lie alike
between two neighbours are one weighted sum of two slices, and those of all kinds lie between each other.

It is done in Dynamo's graph: torch takes these operators apart into indexed reads before a table of ours is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch._prims_common import get_computation_dtype, suggest_memory_format
from torch.nn import functional

SIDES = {"linear": 1, "bilinear": 2, "trilinear": 3}
MOST = 8
"""Places for each one up to which every kind of them has a sum of its own."""


def with_sums(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of Dynamo's, in which `interpolate` has become ours, in place."""
    found = [node for node in module.graph.nodes if node.target is functional.interpolate]
    for node in found:
        node.target = interpolate
    if found:
        module.recompile()
    return module


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """torch's `interpolate`, whose parameters and errors these are."""
    if SIDES.get(mode) == input.dim() - 2 and input.is_floating_point() and not align_corners and not antialias:
        factors = _factors(input, size, scale_factor)
        if factors is not None:
            # Channels last: what is moved lies side by side.
            lead, last = (1, -1) if input.shape[1] > 1 else (2, 1)
            wide = input.to(get_computation_dtype(input.dtype)).movedim(1, last)
            for axis, factor in enumerate(factors, lead):
                wide = _along(wide, axis, factor) if factor > 1 else wide
            result = wide.movedim(last, 1).to(input.dtype)
            return result.contiguous(memory_format=suggest_memory_format(input))
    return functional.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)


def _factors(x: Tensor, size: int | Sequence[int] | None, scale: float | Sequence[float] | None) -> list[int] | None:
    """How many places each side has for one; None where that is no whole number, or not known: sizes are symbolic."""
    sides = x.dim() - 2
    if (size is None) == (scale is None) or any(extent == 0 for extent in x.shape):
        return None
    if scale is not None:
        ratios = list(scale) if isinstance(scale, Sequence) else [scale] * sides
    else:
        sizes = list(size) if isinstance(size, Sequence) else [size] * sides
        if not all(isinstance(extent, int) for extent in (*sizes, *x.shape[2:])) or len(sizes) != sides:
            return None
        ratios = [wanted / extent for wanted, extent in zip(sizes, x.shape[2:], strict=True)]  # type: ignore[operator]
    is_whole = len(ratios) == sides and all(ratio in range(1, MOST + 1) for ratio in ratios)
    return [int(ratio) for ratio in ratios] if is_whole else None


def _along(x: Tensor, axis: int, factor: int) -> Tensor:
    """`factor` places along an axis for each one. Of place q they are those at q + (k + 1/2) / factor - 1/2, where past
    either end the last one repeats.
    """
    extent = x.shape[axis]
    around = torch.cat([x.narrow(axis, 0, 1), x, x.narrow(axis, extent - 1, 1)], axis)
    kinds = []
    for place in range(factor):
        position = (place + 0.5) / factor - 0.5
        low = math.floor(position)
        share = position - low
        near = around.narrow(axis, low + 1, extent)
        kinds.append(near * (1 - share) + around.narrow(axis, low + 2, extent) * share if share else near)
    return torch.cat([kind.unsqueeze(axis + 1) for kind in kinds], axis + 1).flatten(axis, axis + 1)
