"""Running products, maxima and minima along one axis, by torch's library: `cumprod`, `cummax` and `cummin`, whose two
results are the operators `cummax_values` and `cummax_indices` (`cummin_...`).

Of equal extremes the last one counts, and NaN is beyond all numbers, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal, widely
from tessera.ops.applications import maps
from tessera.ops.library import define, per_element
from tessera.ops.record import LibraryCall, Named, Typed, dtype_error

N: TypeAlias = Any


def _numbers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    (x,) = operands
    name = name.partition("_")[0]  # as users call it
    if x.dtype.kind == "float" and x.dtype.itemsize == 1:
        raise dtype_error(name, operands, "not defined on 8-bit floats", ['cast to a wider dtype: x.to("fp32")'])
    if x.dtype.kind == "complex":
        raise dtype_error(name, operands, "not defined on complex numbers")
    return [x.dtype]


# -- cumprod ----------------------------------------------------------------------------------------------------------


def _multiplied(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, cast[0] if cast[0].kind == "float" else int64


def _cumprod_reference(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return x.cumprod(axis)


def _partial_products(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    """Infinite where a product leaves fp32, in which narrow dtypes are multiplied."""
    largest = x.double().abs().clamp_min(1.0).cumprod(axis)
    return torch.where(largest > torch.finfo(torch.float32).max, torch.inf, 0.0)


@widely
def _cumprod_cotangent(g: N, x: N, *, axis: int) -> N:
    """What precedes an element times what follows it, without a division, so that zeros are like other numbers:

    dx[i] = (x[0] ... x[i - 1]) s[i]    s[i] = g[i] + x[i + 1] s[i + 1]

    The sums s are those over 1, 2, 4, ... elements, each out of two of the half.
    """
    extent = x.shape[axis]
    sums, factors = g, _moved(x, axis, 1, 0)
    reach = 1
    while reach < extent:
        sums = sums + factors * _moved(sums, axis, reach, 0)
        factors = factors * _moved(factors, axis, reach, 0)
        reach *= 2
    return _moved(call("cumprod", x, axis=axis), axis, -1, 1) * sums


def _moved(x: N, axis: int, by: int, filling: int) -> N:
    """x[i + by] along an axis, and a number where there is no such element."""
    extent, rank = x.shape[axis], len(x.shape)
    starts = tuple(max(by, 0) if d == axis else 0 for d in range(rank))
    sizes = (*x.shape[:axis], extent - abs(by), *x.shape[axis + 1 :])
    kept = call("slice", x, starts=starts, sizes=sizes, steps=(1,) * rank)
    before, after = (tuple(width if d == axis else 0 for d in range(rank)) for width in (max(-by, 0), max(by, 0)))
    return call("pad", kept, literal(filling, x.dtype), before=before, after=after, mode="constant")


def _cumprod_gradient(g: N, operands: tuple[N], out: N, *, axis: int) -> tuple[N]:
    (x,) = operands
    return (_cumprod_cotangent(g, x, axis=axis) if x.shape[axis] > 1 else g,)


def _cumprod(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.cumprod(inputs[0], attributes["axis"], dtype=outputs[0].dtype, out=outputs[0])


define(
    "cumprod",
    _cumprod,
    {"axis": 0},
    operand_dtypes=_numbers,
    result=_multiplied,
    flops=per_element(1),
    reference=_cumprod_reference,
    gradient=_cumprod_gradient,
    application=maps.along_axis(),
    terms=_partial_products,
)

# -- cummax and cummin ------------------------------------------------------------------------------------------------


def _extreme(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, cast[0] if name.endswith("values") else int64


def _none(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


def _running(name: str, torch_call: Callable[..., Any]) -> None:
    """Registers both results of `name`."""
    results = (f"{name}_values", f"{name}_indices")

    def compute(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
        torch_call(inputs[0], attributes["axis"], out=(outputs[0], outputs[1]))

    def values(x: torch.Tensor, *, axis: int) -> torch.Tensor:
        found: torch.Tensor = torch_call(x, axis).values
        return found

    def indices(x: torch.Tensor, *, axis: int) -> torch.Tensor:
        found: torch.Tensor = torch_call(x, axis).indices
        return found

    def to_origin(g: N, operands: tuple[N], out: N, *, axis: int) -> tuple[N]:
        """The sum of the cotangents of all results that an element is."""
        (x,) = operands
        if 0 in x.shape:
            return (g,)
        zeros = call("broadcast_to", literal(0, x.dtype), shape=x.shape)
        return (call("scatter_add", zeros, call(results[1], x, axis=axis), g, axis=axis),)

    library: LibraryCall = compute
    # Said, since mypy's own common type of the two functions depends on the order in which it reads modules.
    gradients: tuple[Callable[..., Any], ...] = (to_origin, _none)
    for result, reference, gradient in zip(results, (values, indices), gradients, strict=True):
        define(
            result,
            library,
            {"axis": 0},
            operand_dtypes=_numbers,
            result=_extreme,
            flops=per_element(1),
            reference=reference,
            gradient=gradient,
            application=maps.along_axis(),
            joint=results,
        )


_running("cummax", torch.cummax)
_running("cummin", torch.cummin)
