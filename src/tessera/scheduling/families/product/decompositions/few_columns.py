"""Products of a matrix by few columns, made as their transposes: the columns as rows, the matrix as [N, K] weights.

    a [M, K] @ b [K, N]      ->      the transpose of  b.T [N, K] @ a.T [K, M]

Register tiles are as wide as vectors, so that few columns would leave most of them empty. With the columns as rows the
matrix, of which there is most, is read once, as it lies: along K by dot products, else row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tessera.dtypes import accumulator, bf16, fp32, fp64
from tessera.ops.pins import KNOBS
from tessera.ops.record import family_of
from tessera.rewrite.fusion.alignment import Alignment
from tessera.rewrite.fusion.reasons import operations_in
from tessera.rewrite.fusion.siblings import products_of
from tessera.scheduling.binding.arrays import Arrays, Copy, Tensor, V
from tessera.scheduling.binding.regions import Region
from tessera.target import Target

FEW: Final = 8
"""Columns up to which a product is turned on CPUs."""
FEW_OF_PAIRS: Final = 4
"""The same where pairs of bf16 are multiplied by instructions of their own, which dot products do not use. One thread
of Zen 4, K = 512, oneDNN's time over that of ours, turned and not: 2 columns 1.6 and 1.0, 4 columns 1.25 and 0.98, 8
columns 0.72 and 0.93.
"""


def few_columns(target: Target) -> int:
    """Up to so many columns a product is made as its transpose; 0 for never."""
    return FEW if target.kind == "cpu" else 0


def few_columns_of_pairs(target: Target) -> int:
    """The same where bf16 is multiplied in pairs."""
    return FEW_OF_PAIRS if target.has_avx512bf16 else few_columns(target)


WORTH_TURNING: Final = 16
"""Steps of K for each of several columns from which on they are turned: less deep products take narrow register tiles
as long, or less.
"""


def is_turned(region: Region, domain: Sequence[int], arrays: Arrays[Tensor], target: Target) -> bool:
    """Whether a product is made as its transpose; `domain` ends in its m, n and k.

    One whose tile the user asks for is left as it was written, and so is what does not run as one kernel for few
    columns: several products of one A, and one over a norm (`apart.py`).
    """
    m, n, k = domain[-3:]
    most = few_columns(target)
    if n > most or m <= most or (n > 1 and k < WORTH_TURNING * n) or _is_pinned(region):
        return False
    operations = operations_in(region.operation)
    if len(products_of(operations)) > 1 or any(family_of(each.operator).reduces == "axis" for each in operations):
        return False
    rows, depth = len(domain) - 3, len(domain) - 1
    matrices = [(view, place) for view, place in arrays[: len(region.loads)] if rows in place and depth in place]
    if not matrices or (n > 1 and any(accumulator(view.dtype) not in (fp32, fp64) for view, _ in matrices)):
        return False
    if n > few_columns_of_pairs(target) and all(_is_pairs(view, place.index(depth)) for view, place in matrices):
        return False
    return any(all(view.strides[place.index(axis)] == 1 for view, place in matrices) for axis in (depth, rows))


def _is_pairs(view: Tensor, depth: int) -> bool:
    return view.dtype == bf16 and view.strides[depth] == 1


def _is_pinned(region: Region) -> bool:
    return any(name in operation.attributes for operation in region.operation.body.block.ops for name in _ASKED)


_ASKED: Final = (KNOBS, "tile_shape")
"""What stands on an operation whose schedule the user has fixed in part."""


def with_columns_along_k(
    domain: Sequence[int], arrays: Arrays[V], loads: int, copied: Copy[V]
) -> list[tuple[V, Alignment]]:
    """The arrays of a turned product, with what walks n and k contiguous along k: there is little of it.

    `copied(view, strides)` makes a copy of a view in those strides.
    """
    columns, depth = len(domain) - 2, len(domain) - 1
    found = list(arrays)
    for index, (view, place) in enumerate(arrays[:loads]):
        if columns in place and depth in place and view.strides[place.index(depth)] != 1:
            found[index] = copied(view, _strides_along(view.shape, place.index(depth))), place
    return found


def _strides_along(shape: Sequence[int], last: int) -> tuple[int, ...]:
    """Strides of a shape whose elements lie side by side along dimension `last`."""
    strides, step = [0] * len(shape), 1
    for dimension in (last, *(d for d in reversed(range(len(shape))) if d != last)):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)
