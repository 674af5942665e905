"""Reductions over any axes: `sum mean max min prod argmax logsumexp`.

Attributes are `axes`, sorted and counted from 0, and `keepdims`. Integers and bools add up and multiply in int64, as
in torch; `max`, `min` and `argmax` treat NaN as the extreme, and refuse to choose from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import Reduction
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal, widely
from tessera.ops.applications import maps
from tessera.ops.applications.rule import Rule
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import (
    ElementRule,
    Named,
    OperandDTypes,
    Operator,
    Typed,
    as_first,
    dtype_error,
    elements,
    register,
)

N: TypeAlias = Any
Axes: TypeAlias = tuple[int, ...]


# -- rules ------------------------------------------------------------------------------------------------------------


def _accumulated(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    dtype = operands[0].dtype
    return [dtype if dtype.kind == "float" else dtypes.int64]


def _ordered(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _only_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype.kind != "float":
        raise dtype_error(name, operands, "defined on floating-point elements only", ["cast to fp32"])
    return [operands[0].dtype]


def _no_bool(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype is dtypes.bool_:
        raise dtype_error(name, operands, "not defined on bool", ["cast to int32"])
    return [operands[0].dtype]


def _extreme(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    if any(operands[0].shape[axis] == 0 for axis in attributes["axes"]):
        raise ArgumentError(
            f"{name} of a tensor of shape {operands[0].shape} along axes {attributes['axes']}: no elements"
        )
    return cast[0]


def _place(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    axes, shape = attributes["axes"], operands[0].shape
    if len(axes) not in (1, len(shape)):
        raise ArgumentError(
            f"{name} along axes {axes} of a tensor of shape {shape}", hints=["one axis, or all of them"]
        )
    _extreme(name, operands, cast, attributes)
    return dtypes.int64


# -- references -------------------------------------------------------------------------------------------------------


def _sum_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    return torch.sum(x, axes, keepdim=keepdims) if axes else x


def _mean_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    return torch.mean(x, axes, keepdim=keepdims) if axes else x


def _max_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    return torch.amax(x, axes, keepdim=keepdims) if axes else x


def _min_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    return torch.amin(x, axes, keepdim=keepdims) if axes else x


def _prod_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


def _argmax_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    if len(axes) == 1:
        return torch.argmax(x, axes[0], keepdim=keepdims)
    place = torch.argmax(x)
    return place.reshape([1] * x.ndim) if keepdims else place


def _logsumexp_reference(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    return torch.logsumexp(x, axes, keepdim=keepdims) if axes else x


# -- gradients --------------------------------------------------------------------------------------------------------


def _spread(node: N, shape: Shape, axes: Axes) -> N:
    """A result, or its cotangent, repeated along the axes that were reduced."""
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    column = node if node.shape == kept else call("reshape", node, shape=kept)
    return column if kept == shape else call("broadcast_to", column, shape=shape)


def _none(g: N, operands: tuple[N], out: N, **attributes: Any) -> tuple[None]:
    return (None,)


def _sum_gradient(g: N, operands: tuple[N], out: N, *, axes: Axes, keepdims: bool) -> tuple[N]:
    """Each addend has derivative 1."""
    return (_spread(g, operands[0].shape, axes),)


def _mean_gradient(g: N, operands: tuple[N], out: N, *, axes: Axes, keepdims: bool) -> tuple[N]:
    """Each element has derivative 1 / n."""
    shape = operands[0].shape
    count = elements(tuple(shape[axis] for axis in axes))
    return (_spread(g / count if count else g, shape, axes),)


@widely
def _mean_spelled(x: N, *, axes: Axes, keepdims: bool) -> N:
    """The sum over the number of elements, which is NaN of none."""
    total = call("sum", x, axes=axes, keepdims=keepdims)
    count = elements(tuple(x.shape[axis] for axis in axes))
    return call("div", total, literal(count, x.dtype)) if axes else x


def _extreme_gradient(g: N, operands: tuple[N], out: N, *, axes: Axes, keepdims: bool) -> tuple[N]:
    """To the extreme element, in equal parts where there are several (`torch.amax`)."""
    (x,) = operands
    hit = call("cast", x == _spread(out, x.shape, axes), dtype=x.dtype)
    ties = call("sum", hit, axes=axes, keepdims=True)
    return (_spread(g, x.shape, axes) * hit / ties,)


def _prod_gradient(g: N, operands: tuple[N], out: N, *, axes: Axes, keepdims: bool) -> tuple[N]:
    """The product of all others: with one zero only that element has a derivative, with two none has."""
    (x,) = operands
    is_zero = x == 0
    nonzero = call("where", is_zero, literal(1, x.dtype), x)
    product = call("prod", nonzero, axes=axes, keepdims=True)
    zeros = call("sum", is_zero, axes=axes, keepdims=True)
    at_zero = call("where", (zeros == 1) & is_zero, product, literal(0, x.dtype))
    others = call("where", zeros == 0, product / nonzero, at_zero)
    return (_spread(g, x.shape, axes) * others,)


@widely
def _logsumexp_spelled(x: N, *, axes: Axes, keepdims: bool) -> N:
    """log of the sum of exp(x - m), and m, the largest element; an infinite m is its own result."""
    if not axes or 0 in (x.shape[axis] for axis in axes):
        return call("log", call("sum", call("exp", x), axes=axes, keepdims=keepdims))
    largest = call("max", x, axes=axes, keepdims=True)
    infinite = call("eq", call("abs", largest), literal(math.inf, x.dtype))
    finite = call("where", infinite, literal(0, x.dtype), largest)
    total = call("sum", call("exp", x - _spread(finite, x.shape, axes)), axes=axes, keepdims=True)
    result = finite + call("log", total)
    return result if keepdims else call("reshape", result, shape=_without(x.shape, axes))


def _without(shape: Shape, axes: Axes) -> Shape:
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _logsumexp_gradient(g: N, operands: tuple[N], out: N, *, axes: Axes, keepdims: bool) -> tuple[N]:
    """The softmax; 0 where all elements are -inf."""
    (x,) = operands
    finite = call("where", out == -math.inf, literal(0, out.dtype), out)
    return (_spread(g, x.shape, axes) * call("exp", x - _spread(finite, x.shape, axes)),)


# -- bodies -----------------------------------------------------------------------------------------------------------


def _sum_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return e.reduce("add", x)


def _prod_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return e.reduce("mul", x)


def _mean_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return e.div(e.reduce("add", x), e.extent(x))


def _max_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return _of_integers(e, x, lambda value: e.reduce("max", value))


def _min_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return _of_integers(e, x, lambda value: e.reduce("min", value))


def _of_integers(e: Emitter[V], x: V, reduce: Callable[[V], V]) -> V:
    """Bools are compared as integers: as i1, true would be -1."""
    if x.dtype is not dtypes.bool_:
        return reduce(x)
    extreme = reduce(e.cast(x, dtypes.int32))
    return e.compare("ne", extreme, e.constant(0, extreme))


def _argmax_body(e: Emitter[V], x: V, **attributes: object) -> V:
    """The least position that holds the maximum, or a NaN where there is one."""
    hit = e.compare("eq", x, e.reduce("max", x))
    if x.dtype.kind == "float":
        # The maximum is NaN then, and equals nothing.
        hit = e.logical_or(hit, e.compare("ne", x, x))
    position = e.position()
    return e.reduce("min", e.select(hit, position, e.constant(2**62, position)))


def _logsumexp_body(e: Emitter[V], x: V, **attributes: object) -> V:
    largest = e.reduce("max", x)
    # An infinite maximum is its own result; subtracted it would give NaN.
    infinite = e.compare("eq", e.abs(largest), e.constant(math.inf, largest))
    shift = e.select(infinite, e.constant(0.0, largest), largest)
    return e.add(shift, e.log(e.reduce("add", e.exp(e.sub(x, shift), approximate=True))))


def _define(
    name: str,
    operand_dtypes: OperandDTypes,
    reference: Callable[..., torch.Tensor],
    gradient: Callable[..., tuple[Any, ...]],
    body: Callable[..., Any],
    *,
    element: ElementRule = as_first,
    by: Reduction = "row",
    application: Rule | None = None,
    **special: Any,
) -> Operator:
    rule = anchor_rules.reduction(by)
    return register(
        Operator(
            name=name,
            family="reduction",
            arity=(1, 1),
            operand_dtypes=operand_dtypes,
            element=element,
            reference=reference,
            gradient=gradient,
            body=body,
            attributes={"axes": (), "keepdims": False},
            anchor=rule,
            application=application,
            **special,
        )
    )


_define("sum", _accumulated, _sum_reference, _sum_gradient, _sum_body, by="add")


def _largest_partial_product(x: torch.Tensor, *, axes: Axes, keepdims: bool) -> torch.Tensor:
    """Infinite where products of some elements leave fp32, in which narrow dtypes are multiplied, in some order."""
    if not x.is_floating_point():
        return torch.zeros((), dtype=torch.float64)
    largest = _prod_reference(x.double().abs().clamp_min(1.0), axes=axes, keepdims=keepdims)
    return torch.where(largest > torch.finfo(torch.float32).max, torch.inf, 0.0)


_define("prod", _accumulated, _prod_reference, _prod_gradient, _prod_body, by="mul", terms=_largest_partial_product)
_define("mean", _only_float, _mean_reference, _mean_gradient, _mean_body, by="add", spelled=_mean_spelled)
_define("max", _ordered, _max_reference, _extreme_gradient, _max_body, element=_extreme, by="max")
_define("min", _ordered, _min_reference, _extreme_gradient, _min_body, element=_extreme, by="min")
_define("argmax", _no_bool, _argmax_reference, _none, _argmax_body, element=_place, application=maps.of_places)
_define(
    "logsumexp",
    _only_float,
    _logsumexp_reference,
    _logsumexp_gradient,
    _logsumexp_body,
    title="LogSumExp",
    spelled=_logsumexp_spelled,
    terms=lambda x, **attributes: 1.0,  # the logarithm of a sum of exponentials, of which the largest is 1
)
