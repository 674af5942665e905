"""The dtype and shape of several operands together, as torch determines them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Protocol

from tessera.dtypes import DType, promote, promote_product, promote_weak
from tessera.lazy.structures.structure import Shape


class Operand(Protocol):
    """What promotion looks at: the rank, the dtype, and whether the operand is a Python number."""

    @property
    def shape(self) -> Shape:
        """The extents."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def weak(self) -> bool:
        """Whether this is a Python number."""


def common_dtype(operands: Iterable[Operand]) -> DType:
    """The dtype in which operands meet.

    Tensors with dimensions decide; tensors without, then Python numbers, only where their kind (bool < int < float)
    is wider (`torch.result_type`). Raises DTypeError where torch has no common dtype.
    """
    return _folded(operands, promote)


def product_dtype(operands: Iterable[Operand]) -> DType:
    """The dtype of a matrix product of operands: as `common_dtype`, but that fp8 meets wider floats in their dtype.

    Raises DTypeError for fp8 with integers or bools.
    """
    return _folded(operands, promote_product)


def _folded(operands: Iterable[Operand], meet: Callable[[DType, DType], DType]) -> DType:
    ranked: tuple[list[DType], list[DType], list[DType]] = ([], [], [])
    for operand in operands:
        ranked[2 if operand.weak else 0 if operand.shape else 1].append(operand.dtype)
    groups = [reduce(meet, group) for group in ranked if group]
    return reduce(promote_weak, groups)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that shapes broadcast to, aligned at their last dimensions; None where they do not."""
    rank = max(len(shape) for shape in shapes)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1:
                if result[axis] not in (1, extent):
                    return None
                result[axis] = extent
    return tuple(result)
