"""How results lie in memory: the strides that torch's own operators would have given them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tessera.integrations.torch.graphs.extents import Size
from tessera.lazy.structures.structure import Shape, contiguous_strides


@dataclass(frozen=True)
class Layout:
    """Shape and strides in elements, and the dimensions in the order in which they lie, the slowest first."""

    shape: Shape
    strides: Shape
    order: Shape

    @property
    def is_turned(self) -> bool:
        """Whether the dimensions lie densely in another order than that of their names."""
        if self.order == tuple(range(len(self.order))):
            return False
        dense = contiguous_strides(tuple(self.shape[axis] for axis in self.order))
        return all(
            self.shape[axis] == 1 or self.strides[axis] == stride
            for axis, stride in zip(self.order, dense, strict=True)
        )

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements in new memory of this layout."""
        return torch.empty_strided(self.shape, self.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    def fitted(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape with these strides: itself where it has them, else a view or a copy."""
        strides = tensor.stride()
        if strides == self.strides:
            return tensor
        differing = (
            has != wanted for extent, has, wanted in zip(self.shape, strides, self.strides, strict=True) if extent != 1
        )
        if tensor.numel() == 0 or any(differing):
            return self.copy_of(tensor)
        return tensor.as_strided(self.shape, self.strides)


def layout_of(fake: torch.Tensor, size: Callable[[Size], int]) -> Layout:
    """The layout of a fake tensor, with its sizes as `size` has them."""
    shape = tuple(size(extent) for extent in fake.shape)
    strides = tuple(size(stride) for stride in fake.stride())
    # Of extents of 1 the strides say nothing: they stay where they are named.
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)))
    if strides == contiguous_strides(shape):
        order = tuple(range(len(shape)))
    return Layout(shape, strides, order)
