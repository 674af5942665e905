"""Products of the rows of a matrix, group by group, each group with a matrix of its own: `grouped_matmul`, and
`grouped_outer`, the gradient of those matrices. One step of a plan, however many groups there are.

Groups lie one behind the other, and their sizes are known where the product is computed. Rows behind the last group
are in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.errors import IndexRangeError
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications import products
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, elements, shape_error

N: TypeAlias = Any


def _dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    first, second, sizes = operands
    if sizes.dtype.kind != "int":
        raise dtype_error(name, operands, "sizes of groups are integers", ["cast them to int64"])
    if first.dtype is not second.dtype or first.dtype.kind != "float" or first.dtype.itemsize == 1:
        raise dtype_error(name, operands, "the tensors have one floating-point dtype, not of 8 bits", ["cast them"])
    return [first.dtype, second.dtype, int64]


def _product(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    x, weights, sizes = (operand.shape for operand in operands)
    if (len(x), len(weights), len(sizes)) != (2, 3, 1) or x[1] != weights[1] or weights[0] != sizes[0]:
        raise shape_error(name, operands, "rows [T, K], weights [E, K, N] and sizes [E]")
    return (x[0], weights[2]), cast[0]


def _outer(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    x, y, sizes = (operand.shape for operand in operands)
    if (len(x), len(y), len(sizes)) != (2, 2, 1) or x[0] != y[0]:
        raise shape_error(name, operands, "rows [T, K] and [T, N] and sizes [E]")
    return (sizes[0], x[1], y[1]), cast[0]


def _multiplications(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """As if all rows were in a group."""
    return 2 * elements(operands[0].shape) * operands[1].shape[-1]


def _groups(sizes: torch.Tensor, rows: int) -> Iterator[slice]:
    """The rows of each group. Raises IndexRangeError for sizes that are negative, or of more rows than there are."""
    counts = sizes.tolist()
    if min(counts, default=0) < 0 or sum(counts) > rows:
        raise IndexRangeError(
            f"grouped_matmul: groups of {counts} of {rows} rows",
            hints=["sizes are not negative, and add up to the number of rows at most"],
        )
    start = 0
    for count in counts:
        yield slice(start, start + count)
        start += count


# -- grouped_matmul ---------------------------------------------------------------------------------------------------


def _product_reference(x: torch.Tensor, weights: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts = [x[rows] @ matrix for rows, matrix in zip(_groups(sizes, len(x)), weights, strict=True)]
    rest = x[int(sizes.sum()) :]
    return torch.cat([*parts, rest.new_zeros(len(rest), weights.shape[2])])


def _product_gradient(g: N, operands: tuple[N, N, N], out: N) -> tuple[N, N, None]:
    x, weights, sizes = operands
    turned = call("transpose", weights, permutation=(0, 2, 1))
    return call("grouped_matmul", g, turned, sizes), call("grouped_outer", x, g, sizes), None


def _multiply(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, weights, sizes), (result,) = inputs, outputs
    end = 0
    for rows, matrix in zip(_groups(sizes, len(x)), weights, strict=True):
        if rows.stop > rows.start:
            torch.mm(x[rows], matrix, out=result[rows])
        end = rows.stop
    result[end:].zero_()


define(
    "grouped_matmul",
    _multiply,
    {},
    arity=(3, 3),
    operand_dtypes=_dtypes,
    result=_product,
    flops=_multiplications,
    reference=_product_reference,
    gradient=_product_gradient,
    application=products.of_grouped_products,
)

# -- grouped_outer ----------------------------------------------------------------------------------------------------


def _outer_reference(x: torch.Tensor, y: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts = [x[rows].T @ y[rows] for rows in _groups(sizes, len(x))]
    return torch.stack(parts) if parts else x.new_zeros(0, x.shape[1], y.shape[1])


def _outer_gradient(g: N, operands: tuple[N, N, N], out: N) -> tuple[N, N, None]:
    x, y, sizes = operands
    turned = call("transpose", g, permutation=(0, 2, 1))
    return call("grouped_matmul", y, turned, sizes), call("grouped_matmul", x, g, sizes), None


def _multiply_outer(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, y, sizes), (result,) = inputs, outputs
    for rows, matrix in zip(_groups(sizes, len(x)), result, strict=True):
        torch.mm(x[rows].T, y[rows], out=matrix)


define(
    "grouped_outer",
    _multiply_outer,
    {},
    arity=(3, 3),
    operand_dtypes=_dtypes,
    result=_outer,
    flops=_multiplications,
    reference=_outer_reference,
    gradient=_outer_gradient,
    application=products.of_grouped_outer_products,
)
