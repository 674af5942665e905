"""Products of a matrix by few columns, made as their transposes: the columns as rows, the matrix as [N, K] weights.

    a [M, K] @ b [K, N]      ->      the transpose of  b.T [N, K] @ a.T [K, M]

Register tiles are as wide as vectors, so that few columns would leave most of them empty. With the columns as rows the
matrix, of which there is most, is read once, as it lies: along K by dot products, else row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tessera.compiler.bind.arrays import View
from tessera.compiler.graph.program import Alignment, KernelItem
from tessera.dtypes import accumulator, bf16, fp32, fp64
from tessera.ops.pins import KNOBS

Arrays: TypeAlias = Sequence[tuple[View, Alignment]]

TURNED: Final = "turned contraction"
"""The family of products whose arrays are laid out so."""
WORTH_TURNING: Final = 16
"""Steps of K for each of several columns from which on they are turned: less deep products take narrow register tiles
as long, or less.
"""


def is_turned(item: KernelItem, domain: Sequence[int], arrays: Arrays, most: int, most_of_pairs: int) -> bool:
    """Whether a product is made as its transpose; `domain` ends in its m, n and k, and `most` columns are few, of bf16
    along K `most_of_pairs`.

    One whose tile the user asks for is left as it was written, and so is what does not run as one kernel for few
    columns: several products of one A, and one over a norm (`PlanCompiler.apart`).
    """
    m, n, k = domain[-3:]
    if n > most or m <= most or (n > 1 and k < WORTH_TURNING * n) or _is_pinned(item):
        return False
    if item.takes_rows or len(item.products) > 1:
        return False
    rows, depth = len(domain) - 3, len(domain) - 1
    matrices = [(view, place) for view, place in arrays[: len(item.loads)] if rows in place and depth in place]
    if not matrices or (n > 1 and any(accumulator(view.dtype) not in (fp32, fp64) for view, _ in matrices)):
        return False
    if n > most_of_pairs and all(_is_pairs(view, place.index(depth)) for view, place in matrices):
        return False
    return any(all(view.strides[place.index(axis)] == 1 for view, place in matrices) for axis in (depth, rows))


def _is_pairs(view: View, depth: int) -> bool:
    return view.dtype == bf16 and view.strides[depth] == 1


def _is_pinned(item: KernelItem) -> bool:
    return any(name in operation.attributes for operation in item.operation.body.block.ops for name in _ASKED)


_ASKED: Final = (KNOBS, "tile_shape")
"""What stands on an operation whose schedule the user has fixed in part."""


def with_columns_along_k(
    item: KernelItem, domain: Sequence[int], arrays: Arrays, copied: Callable[[View, tuple[int, ...]], View]
) -> list[tuple[View, Alignment]]:
    """The arrays of a turned product, with what walks n and k contiguous along k: there is little of it.

    `copied(view, strides)` makes a copy of a view in those strides.
    """
    columns, depth = len(domain) - 2, len(domain) - 1
    found = list(arrays)
    for index, (view, place) in enumerate(arrays[: len(item.loads)]):
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
