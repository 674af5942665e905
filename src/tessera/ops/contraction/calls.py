"""Matrix products as users call them: vectors, settings and scalings sorted out before the records see them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tessera import dtypes
from tessera.dtypes import DType, accumulator, dtype_of
from tessera.errors import ArgumentError
from tessera.lazy.leaves.scalars import LITERALS, Number
from tessera.lazy.node import Node
from tessera.lazy.structures.building import apply, binary
from tessera.lazy.structures.promotion import product_dtype
from tessera.ops.algebra import call
from tessera.ops.contraction.records import GEMM, MATMUL
from tessera.ops.layout import views
from tessera.ops.record import dtype_error, shape_error

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
    product = matmul(row, column, settings)
    *batch, m, n = product.shape
    return views.reshape(product, (*batch, *([m] if rank > 1 else []), *([n] if rank_second > 1 else [])))


def gemm(a: Node, b: Node, c: Node | None, alpha: Number, beta: Number, settings: tuple[Any, ...] = DEFAULTS) -> Any:
    """`alpha * a @ b + beta * c`. Scalings that are no small literals are run-time arguments: the same sum out of
    single operators.

    Raises ArgumentError (E_ARGUMENT) for a scaling that is no number, and where integers would be scaled by a
    fraction, as torch does.
    """
    _require_number("alpha", alpha)
    _require_number("beta", beta)
    if product_dtype([a.structure, b.structure]).kind == "int":
        alpha, beta = _whole("alpha", alpha), _whole("beta", beta)
    if alpha in LITERALS and beta in LITERALS:
        operands = (a, b) if c is None else (a, b, c)
        return apply(GEMM, (float(alpha), float(beta), *settings), operands)
    if c is not None:
        # As in the record: operands meet in one dtype before they are multiplied, not after the product is rounded.
        common = product_dtype([a.structure, b.structure, c.structure])
        a, b, c = (x if x.dtype is common or not x.shape else call("cast", x, dtype=common) for x in (a, b, c))
    product = call("mul", matmul(a, b, settings), alpha)
    return product if c is None or beta == 0 else call("add", product, call("mul", c, beta))


def _require_number(name: str, value: object) -> None:
    if not isinstance(value, int | float | Node):
        views.number(value, name)


def _whole(name: str, value: Number) -> Number:
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise ArgumentError(f"gemm of integers with {name}={value}", hints=["cast the operands to fp32"])
    return int(value)


def settings_of(tile_shape: Sequence[int] | None, math: str | None) -> tuple[Any, ...]:
    """The attributes of a product, checked. Raises ArgumentError (E_ARGUMENT)."""
    if not views.is_one_of(math, (None, "tf32")):
        raise ArgumentError(f"math mode {math!r}", hints=['the one math mode is "tf32"'])
    if tile_shape is None:
        return None, math
    try:
        tile = tuple(operator.index(extent) for extent in tile_shape)
    except TypeError:
        tile = ()
    if len(tile) != 3 or any(extent < 1 for extent in tile):
        raise ArgumentError(f"tile_shape {tile_shape!r}: three positive extents (BM, BN, BK) make a tile")
    return tile, math


def summed_in(accum_dtype: object, name: str, operands: Sequence[Node]) -> tuple[list[Any], DType | None]:
    """What to multiply so that sums are formed in `accum_dtype`: the operands, and the dtype that the product is to
    be cast back to (None: it has it).

    Floats are multiplied and summed in a wider dtype by being cast to it, which their kernel does as it reads them.
    Sums of integers wrap around in the end, whatever the width on the way. Raises DTypeError (E_DTYPE) for a dtype
    that is narrower than the usual one or of another kind.
    """
    types = [operand.structure for operand in operands]
    wanted, common = dtype_of(accum_dtype), product_dtype(types)
    usual = accumulator(common)
    allowed = [dtype for dtype in _SUMS if dtype.kind == usual.kind and dtype.itemsize >= usual.itemsize]
    if wanted not in allowed and allowed:  # of bool there is no product, which its record says
        names = " or ".join(map(str, allowed))
        raise dtype_error(name, types, f"accum_dtype {wanted}", [f"sums of {common} are formed in {names}"])
    if wanted is usual or usual.kind != "float":
        return list(operands), None
    wide = [operand if operand.dtype is wanted else call("cast", operand, dtype=wanted) for operand in operands]
    return wide, common


_SUMS = (dtypes.fp32, dtypes.fp64, dtypes.int32, dtypes.int64)
