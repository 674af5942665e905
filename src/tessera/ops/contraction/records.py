"""Contractions: `matmul` and `gemm`.

Operands have at least two dimensions here (`functions` adds them to vectors); batch dimensions broadcast. Elements
meet in the wider dtype, fp8 with wider floats too; the two fp8 dtypes, of which neither holds the other, in fp32.
`tile_shape` asks for a tile (BM, BN, BK), `math="tf32"` permits products of 10-bit mantissas; neither changes what is
computed otherwise. Sums are formed in the accumulator of the operands' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, accumulator, dtype_of
from tessera.lazy.structures.promotion import product_dtype
from tessera.ops.algebra import call, literal, sum_to
from tessera.ops.applications import products
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register

N: TypeAlias = Any

SETTINGS = {"tile_shape": None, "math": None}


def _common(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    common = product_dtype(operands)
    if common.kind == "bool":
        raise dtype_error(name, operands, "not defined on bool", ["cast to fp32"])
    return [common] * len(operands)


def _element(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    """The operands' dtype; of narrow integers, which do not hold their products, that of the sums."""
    return accumulator(cast[0]) if cast[0].kind == "int" else cast[0]


def _advice(operands: Sequence[Typed], attributes: Named) -> list[str]:
    a, b = operands[0].shape, operands[1].shape
    if min(len(a), len(b)) < 2 or a[-1] == b[-2]:
        return []
    fitting = {"first": a[-2] == b[-2], "second": a[-1] == b[-1]}
    return [f"transpose the {which} operand" for which, fits in fitting.items() if fits]


def _wide(x: torch.Tensor) -> torch.Tensor:
    dtype = dtype_of(x.dtype)
    return x.to(accumulator(dtype).torch) if dtype.kind == "int" else x


def _matmul_reference(a: torch.Tensor, b: torch.Tensor, **settings: object) -> torch.Tensor:
    return torch.matmul(_wide(a), _wide(b))


def _gemm_reference(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, *, alpha: float, beta: float, **settings: object
) -> torch.Tensor:
    product = torch.matmul(_wide(a), _wide(b))
    if not product.is_floating_point() and not product.is_complex():
        alpha, beta = int(alpha), int(beta)  # torch multiplies integers by a float in fp32
    product = alpha * product
    return product if c is None or beta == 0 else product + beta * c


def transpose_last(x: N) -> N:
    """The last two dimensions exchanged."""
    rank = len(x.shape)
    return call("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def _matmul_gradient(g: N, operands: tuple[N, N], out: N, **settings: Any) -> tuple[N, N]:
    """d(AB) = dA B + A dB. A tile shape speaks of the forward product only."""
    a, b = operands
    kept = {**settings, "tile_shape": None}
    return (
        sum_to(call("matmul", g, transpose_last(b), **kept), a.shape),
        sum_to(call("matmul", transpose_last(a), g, **kept), b.shape),
    )


def _gemm_gradient(
    g: N, operands: tuple[N, ...], out: N, *, alpha: float, beta: float, **settings: Any
) -> tuple[N, ...]:
    scaled = _matmul_gradient(g if alpha == 1 else g * alpha, (operands[0], operands[1]), out, **settings)
    if len(operands) == 2:
        return scaled
    return (*scaled, sum_to(g if beta == 1 else g * beta, operands[2].shape))


def _gemm_spelled(a: N, b: N, c: N | None = None, *, alpha: float, beta: float, **settings: Any) -> N:
    """The product alone, and what is done to it afterwards: C is added once, not by every device that has a part."""
    product = call("matmul", a, b, **settings)
    scaled = product if alpha == 1 else product * literal(alpha, product.dtype)
    if c is None or beta == 0:
        return scaled
    addend = call("cast", c, dtype=product.dtype)
    return scaled + (addend if beta == 1 else addend * literal(beta, product.dtype))


def _matmul_body(e: Emitter[V], a: V, b: V, **settings: object) -> V:
    return e.contract(a, b)


def _gemm_body(e: Emitter[V], a: V, b: V, c: V | None = None, *, alpha: float, beta: float, **settings: object) -> V:
    product = e.contract(a, b)
    if alpha != 1:
        product = e.mul(product, e.constant(alpha, product))
    # As in BLAS, C is not read where beta is 0: a NaN in it does not count.
    if c is None or beta == 0:
        return product
    addend = e.cast(c, product.dtype)
    return e.add(product, addend if beta == 1 else e.mul(addend, e.constant(beta, product)))


MATMUL = register(
    Operator(
        name="matmul",
        family="contraction",
        arity=(2, 2),
        operand_dtypes=_common,
        element=_element,
        advice=_advice,
        reference=_matmul_reference,
        gradient=_matmul_gradient,
        body=_matmul_body,
        title="MatMul",
        attributes=SETTINGS,
    )
)

GEMM = register(
    Operator(
        name="gemm",
        family="contraction",
        arity=(2, 3),
        operand_dtypes=_common,
        element=_element,
        advice=_advice,
        reference=_gemm_reference,
        gradient=_gemm_gradient,
        spelled=_gemm_spelled,
        body=_gemm_body,
        attributes={"alpha": 1.0, "beta": 1.0, **SETTINGS},
        application=products.of_scaled_products,
    )
)
