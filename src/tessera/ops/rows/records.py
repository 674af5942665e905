"""Row operators: `softmax`, `log_softmax` along one axis, `layer_norm`, `rms_norm` along the last.

Each stays one operator until a kernel is lowered; its body then says how it reduces and maps. Bodies guard against
overflow and cancellation: softmax subtracts the maximum, layer_norm sums squares of what is centred already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import Anchor
from tessera.ops.algebra import call, literal, sum_to, widely
from tessera.ops.applications import maps
from tessera.ops.applications.rule import Rule
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, register

N: TypeAlias = Any


# -- rules ------------------------------------------------------------------------------------------------------------


def _only_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if any(operand.dtype.kind != "float" for operand in operands):
        raise dtype_error(name, operands, "defined on floating-point elements only", ["cast to fp32"])
    return [operand.dtype for operand in operands]


def _advice(operands: Sequence[Typed], attributes: Named) -> Sequence[str]:
    return ["reshape the input so that one dimension is normalized"] if len(operands) > 1 else []


# -- references -------------------------------------------------------------------------------------------------------


def _softmax_reference(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.softmax(x, axis)


def _log_softmax_reference(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis)


def _layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, eps: float
) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


# -- gradients --------------------------------------------------------------------------------------------------------


def _sum_along(x: N, axis: int) -> N:
    return call("sum", x, axes=(axis,), keepdims=True)


def _mean_last(x: N) -> N:
    return call("mean", x, axes=(len(x.shape) - 1,), keepdims=True)


def _fitted(cotangent: N, operand: N) -> N:
    """Summed to the shape, and cast to the dtype, of a parameter."""
    summed = sum_to(cotangent, operand.shape)
    return summed if summed.dtype is operand.dtype else call("cast", summed, dtype=operand.dtype)


def _softmax_gradient(g: N, operands: tuple[N], out: N, *, axis: int) -> tuple[N]:
    """dx = s (g - <g, s>)."""
    return (out * (g - _sum_along(g * out, axis)),)


def _log_softmax_gradient(g: N, operands: tuple[N], out: N, *, axis: int) -> tuple[N]:
    """dx = g - softmax(x) sum(g)."""
    return (g - call("exp", out) * _sum_along(g, axis),)


def _layer_norm_gradient(g: N, operands: tuple[N, ...], out: N, *, eps: float) -> tuple[N, ...]:
    """With y = (x - mean) r: dx = r (h - mean(h) - y mean(h y)), h = g weight (Ba, Kiros, Hinton 2016)."""
    x, *parameters = operands
    centred = x - _mean_last(x)
    scale = call("rsqrt", _mean_last(centred * centred) + eps)
    normal = centred * scale
    h = g * parameters[0] if parameters else g
    dx = scale * (h - _mean_last(h) - normal * _mean_last(h * normal))
    factors = (g * normal, g)
    pairs = zip(factors, parameters, strict=False)  # weight alone, or weight and bias
    return _fitted(dx, x), *(_fitted(factor, parameter) for factor, parameter in pairs)


def _rms_norm_gradient(g: N, operands: tuple[N, ...], out: N, *, eps: float) -> tuple[N, ...]:
    """With y = x r: dx = r (h - y mean(h y)), h = g weight."""
    x, *parameters = operands
    scale = call("rsqrt", _mean_last(x * x) + eps)
    normal = x * scale
    h = g * parameters[0] if parameters else g
    dx = scale * (h - normal * _mean_last(h * normal))
    return _fitted(dx, x), *(_fitted(g * normal, weight) for weight in parameters)


# -- spelled in other operators ---------------------------------------------------------------------------------------


def _shifted(x: N, axis: int) -> N:
    return x - call("max", x, axes=(axis,), keepdims=True)


@widely
def _softmax_spelled(x: N, *, axis: int) -> N:
    if not x.shape[axis]:
        return x
    weights = call("exp", _shifted(x, axis))
    return weights / _sum_along(weights, axis)


@widely
def _log_softmax_spelled(x: N, *, axis: int) -> N:
    if not x.shape[axis]:
        return x
    shifted = _shifted(x, axis)
    return shifted - call("log", _sum_along(call("exp", shifted), axis))


@widely
def _layer_norm_spelled(x: N, weight: N | None = None, bias: N | None = None, *, eps: float) -> N:
    centred = x - _mean_last(x)
    result = centred * call("rsqrt", _mean_last(centred * centred) + literal(eps, x.dtype))
    if weight is not None:
        result = result * call("cast", weight, dtype=x.dtype)
    return result if bias is None else result + call("cast", bias, dtype=x.dtype)


@widely
def _rms_norm_spelled(x: N, weight: N | None = None, *, eps: float) -> N:
    result = x * call("rsqrt", _mean_last(x * x) + literal(eps, x.dtype))
    return result if weight is None else result * call("cast", weight, dtype=x.dtype)


# -- bodies -----------------------------------------------------------------------------------------------------------


def _softmax_body(e: Emitter[V], x: V, **attributes: object) -> V:
    weight = e.exp(e.sub(x, e.reduce("max", x)), approximate=True)
    # One division a row: a division costs as much as half an exp, and the second rounding is below the sum's own error.
    total = e.reduce("add", weight)
    return e.mul(weight, e.div(e.constant(1.0, total), total))


def _log_softmax_body(e: Emitter[V], x: V, **attributes: object) -> V:
    shifted = e.sub(x, e.reduce("max", x))
    return e.sub(shifted, e.log(e.reduce("add", e.exp(shifted, approximate=True))))


def _mean_body(e: Emitter[V], x: V) -> V:
    return e.div(e.reduce("add", x), e.extent(x))


def _layer_norm_body(e: Emitter[V], x: V, weight: V | None = None, bias: V | None = None, *, eps: float) -> V:
    centred = e.sub(x, _mean_body(e, x))
    variance = _mean_body(e, e.mul(centred, centred))
    result = e.mul(centred, e.rsqrt(e.add(variance, e.constant(eps, variance))))
    if weight is not None:
        result = e.mul(result, e.cast(weight, result.dtype))
    return result if bias is None else e.add(result, e.cast(bias, result.dtype))


def _rms_norm_body(e: Emitter[V], x: V, weight: V | None = None, *, eps: float) -> V:
    square = _mean_body(e, e.mul(x, x))
    result = e.mul(x, e.rsqrt(e.add(square, e.constant(eps, square))))
    return result if weight is None else e.mul(result, e.cast(weight, result.dtype))


def _define(
    name: str,
    most: int,
    reference: Callable[..., torch.Tensor],
    gradient: Callable[..., tuple[Any, ...]],
    body: Callable[..., Any],
    attributes: Named,
    cheap: bool = False,
    application: Rule | None = None,
    **special: Any,
) -> Operator:
    return register(
        Operator(
            name=name,
            family="row",
            arity=(1, most),
            operand_dtypes=_only_float,
            advice=_advice,
            reference=reference,
            gradient=gradient,
            body=body,
            attributes=attributes,
            cheap=cheap,
            application=application,
            **special,
        )
    )


_AXIS: Named = {"axis": -1}


def _along_axis(ranks: tuple[int, ...], attributes: Named) -> Anchor:
    """As Graph IR has it, whose axes count from the front; a record's own default is the last one."""
    axis = attributes["axis"]
    return anchor_rules.along_axis(ranks, {"axis": axis + ranks[0] if axis < 0 else axis})


def _one(x: torch.Tensor, *, axis: int) -> float:
    """The logarithm of a sum of exponentials, of which the largest is 1."""
    return 1.0


def _deviations(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, eps: float
) -> torch.Tensor:
    """Elements and their mean, which are subtracted, in the scale of the result."""
    scaled = x.abs() * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
    return scaled if weight is None else scaled * weight.abs()


_ALONG: dict[str, Any] = {
    "attributes": _AXIS,
    "anchor": _along_axis,
    "application": maps.along_axis(),
}
_define("softmax", 1, _softmax_reference, _softmax_gradient, _softmax_body, spelled=_softmax_spelled, **_ALONG)
_define(
    "log_softmax",
    1,
    _log_softmax_reference,
    _log_softmax_gradient,
    _log_softmax_body,
    terms=_one,
    spelled=_log_softmax_spelled,
    **_ALONG,
)
_define(
    "layer_norm",
    3,
    _layer_norm_reference,
    _layer_norm_gradient,
    _layer_norm_body,
    {"eps": 1e-5},
    True,
    anchor=anchor_rules.normalization,
    terms=_deviations,
    spelled=_layer_norm_spelled,
)
_define(
    "rms_norm",
    2,
    _rms_norm_reference,
    _rms_norm_gradient,
    _rms_norm_body,
    {"eps": 1e-6},
    True,
    anchor=anchor_rules.normalization,
    spelled=_rms_norm_spelled,
)
