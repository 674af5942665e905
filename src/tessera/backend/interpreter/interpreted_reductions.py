"""Reductions of Triton's interpreter by halves: it combines one element after another, a call of the combining function
for each, which took most of the time of kernels with reductions (Triton 3.6).

Neighbours are combined with neighbours, so that the order is the one of the elements, and sums are those of a tree, as
on a GPU. Each function takes Triton's interpreter module, which is imported once and late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy


def reduce_by_halves(found: Any) -> None:
    """Makes `tl.reduce` of any combining function a tree of operations on whole blocks."""

    def reduced(self: Any, operands: Sequence[Any]) -> list[Any]:
        values = [operand.handle.data for operand in operands]
        shape, axis = list(values[0].shape), self.axis
        blocks = [each.reshape(-1) if axis is None else numpy.moveaxis(each, axis, 0) for each in values]
        while (extent := len(blocks[0])) > 1:
            pairs = extent // 2 * 2
            left, right = ([block[first:pairs:2] for block in blocks] for first in (0, 1))
            combined = _combined(self, operands, left, right)
            blocks = [numpy.concatenate((made, block[pairs:])) for made, block in zip(combined, blocks, strict=True)]
        results = [block[0] for block in blocks]
        if self.keep_dims:
            kept = [1] * len(shape) if axis is None else [*shape[:axis], 1, *shape[axis + 1 :]]
            results = [result.reshape(kept) for result in results]
        return [self.to_tensor(result, each.dtype) for result, each in zip(results, operands, strict=True)]

    found.ReduceOps.generic_reduce = reduced


def _combined(reduction: Any, operands: Sequence[Any], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """What the combining function makes of two blocks for each operand, of the same shape and dtype."""
    arguments = [
        reduction.to_tensor(block, operand.dtype)
        for side in (left, right)
        for block, operand in zip(side, operands, strict=True)
    ]
    made = reduction.combine_fn.fn(*arguments)
    results = made if isinstance(made, tuple) else (made,)
    return [result.handle.data.astype(block.dtype) for result, block in zip(results, left, strict=True)]


_POINTER: Final = numpy.dtype(numpy.uint64)


def remember_dtypes(found: Any) -> None:
    """Looks dtypes up by the name of their elements: the interpreter builds a table of all for each operation."""
    tl, asked = found.tl, found._get_np_dtype
    known: dict[str, Any] = {}

    def dtype_of(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if isinstance(element, tl.pointer_type):
            return _POINTER
        if element.name not in known:
            known[element.name] = asked(element)
        return known[element.name]

    found._get_np_dtype = dtype_of
