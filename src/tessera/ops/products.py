"""Matrix products as users call them: vectors, settings and scalings sorted out before the records see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import dtypes
from tessera.dtypes import DType, dtype_of
from tessera.errors import ArgumentError, DTypeError
from tessera.lazy.building import apply, binary
from tessera.lazy.node import Node
from tessera.lazy.scalars import LITERALS, Number
from tessera.ops import views
from tessera.ops.algebra import call
from tessera.ops.contraction import GEMM, MATMUL
from tessera.ops.record import shape_error

DEFAULTS = MATMUL.attribute_values()


def matmul(a: Node, b: Node, settings: tuple[Any, ...] = DEFAULTS) -> Any:
    """`a @ b`; a vector is a row on the left and a column on the right, and its dimension is dropped from the
    result, as in torch.
    """
    rank, rank_second = len(a.state[0].shape), len(b.state[0].shape)
    if rank > 1 and rank_second > 1:
        return binary(MATMUL, settings, a, b)
    if not rank or not rank_second:
        raise shape_error(
            "matmul", (a.structure, b.structure), "operands need a dimension", ["multiply numbers with *"]
        )
    if a.shape[-1] != b.shape[max(rank_second - 2, 0)]:
        raise shape_error("matmul", (a.structure, b.structure), "inner extents differ")
    row = views.reshape(a, (1, *a.shape)) if rank == 1 else a
    column = views.reshape(b, (*b.shape, 1)) if rank_second == 1 else b
    product = binary(MATMUL, settings, row, column)
    *batch, m, n = product.shape
    return views.reshape(product, (*batch, *([m] if rank > 1 else []), *([n] if rank_second > 1 else [])))


def gemm(a: Node, b: Node, c: Node | None, alpha: Number, beta: Number, settings: tuple[Any, ...] = DEFAULTS) -> Any:
    """`alpha * a @ b + beta * c`. Scalings that are no small literals are run-time arguments: the same sum out of
    single operators.
    """
    if alpha in LITERALS and beta in LITERALS:
        operands = (a, b) if c is None else (a, b, c)
        return apply(GEMM, (float(alpha), float(beta), *settings), operands)
    product = call("mul", matmul(a, b, settings), alpha)
    return product if c is None or beta == 0 else call("add", product, call("mul", c, beta))


def settings_of(tile_shape: Sequence[int] | None, accum_dtype: object, math: str | None) -> tuple[Any, ...]:
    """The attributes of a product, checked. Raises ArgumentError and DTypeError."""
    tile = None
    if tile_shape is not None:
        tile = tuple(int(extent) for extent in tile_shape)
        if len(tile) != 3 or any(extent < 1 for extent in tile):
            raise ArgumentError(f"tile_shape {tuple(tile_shape)}: three positive extents (BM, BN, BK) make a tile")
    accumulator: DType | None = None
    if accum_dtype is not None:
        accumulator = dtype_of(accum_dtype)
        if accumulator not in (dtypes.fp32, dtypes.fp64, dtypes.int32, dtypes.int64):
            raise DTypeError(f"accum_dtype {accumulator}", hints=["sums are formed in fp32, fp64, int32 or int64"])
    if math not in (None, "tf32"):
        raise ArgumentError(f"math mode {math!r}", hints=['the one math mode is "tf32"'])
    return tile, accumulator, math
