"""Elementwise operators: arithmetic, comparisons, logic and the functions of one variable.

Operands broadcast, and meet in the dtype that torch gives them (`lazy.promotion`). Constants of derivatives are
written out:
erf' (x) = 2 / sqrt(pi) exp(-x^2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.lazy.promotion import common_dtype
from tessera.ops.applications import maps
from tessera.ops.applications.rule import Rule
from tessera.ops.elementwise import bodies, gradients
from tessera.ops.extension import flops_per_element, only_float
from tessera.ops.record import (
    ElementRule,
    Named,
    OperandDTypes,
    Operator,
    Typed,
    bytes_once,
    dtype_error,
    register,
)

Reference = Callable[..., torch.Tensor]


# -- dtypes that operands are cast to ---------------------------------------------------------------------------------


def _common(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [common_dtype(operands)] * len(operands)


def _no_bool(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    common = _common(name, operands, attributes)
    if common[0] is dtypes.bool_:
        raise dtype_error(name, operands, "not defined on bool", ["cast to int64 or fp32, or use logical operators"])
    return common


def _to_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    common = common_dtype(operands)
    # Integers and bools become torch's default dtype.
    return [common if common.kind == "float" else dtypes.dtype_of(torch.get_default_dtype())] * len(operands)


def _to_bool(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [dtypes.bool_] * len(operands)


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _choice(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    condition, *branches = operands
    if condition.dtype is not dtypes.bool_:
        raise dtype_error(name, operands, "the condition must be bool", ["compare: x != 0"])
    return [dtypes.bool_, *_common(name, branches, attributes)]


def _clamped(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    (common,) = set(_no_bool(name, operands, attributes))
    for bound in (attributes["minimum"], attributes["maximum"]):
        if bound is not None:
            common = dtypes.promote_scalar(common, bound)
    return [common]


# -- dtype of the result ----------------------------------------------------------------------------------------------


def _last(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    return cast[-1]


def _bool(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    return dtypes.bool_


def _wanted(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    wanted: DType = attributes["dtype"]
    if wanted not in dtypes.SUPPORTED:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes.SUPPORTED))
        hint = (
            'tf32 is a math mode: op.matmul(a, b, math="tf32")' if wanted is dtypes.tf32 else f"cast to one of {names}"
        )
        raise dtype_error(name, operands, f"tensors of {wanted} are not computed with", [hint])
    return wanted


def _advice(operands: Sequence[Typed], attributes: Named) -> Sequence[str]:
    return ["extents must agree from the last dimension on, or be 1"]


# -- the records ------------------------------------------------------------------------------------------------------


def _define(
    name: str,
    arity: int,
    operand_dtypes: OperandDTypes,
    reference: Reference,
    gradient: Callable[..., tuple[Any, ...]],
    body: Callable[..., Any],
    *,
    flops: int = 1,
    element: ElementRule = _last,
    attributes: Named | None = None,
    cheap: bool = False,
    application: Rule | None = None,
    **special: Any,
) -> Operator:
    return register(
        Operator(
            name=name,
            family="elementwise",
            arity=(arity, arity),
            operand_dtypes=operand_dtypes,
            element=element,
            advice=_advice,
            flops=flops_per_element(flops),
            bytes_moved=bytes_once,
            reference=reference,
            gradient=gradient,
            body=body,
            attributes=attributes or {},
            cheap=cheap,
            application=application,
            **special,
        )
    )


def _gelu_reference(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def _size(x: torch.Tensor, **attributes: object) -> torch.Tensor:
    return x.abs()


def _clamp_reference(x: torch.Tensor, *, minimum: float | None, maximum: float | None) -> torch.Tensor:
    return torch.clamp(x, minimum, maximum)


def _cast_reference(x: torch.Tensor, *, dtype: DType) -> torch.Tensor:
    rounded = x.to(dtype.torch)
    return rounded.to(torch.float64) if dtype.kind == "float" else rounded


def _define_arithmetic() -> None:
    _define("add", 2, _common, torch.add, gradients.add, bodies.add, cheap=True)
    _define("sub", 2, _no_bool, torch.sub, gradients.sub, bodies.sub, cheap=True)
    _define("mul", 2, _common, torch.mul, gradients.mul, bodies.mul, cheap=True)
    _define("div", 2, _to_float, torch.div, gradients.div, bodies.div)
    _define("pow", 2, _no_bool, torch.pow, gradients.pow, bodies.pow, application=maps.of_powers)
    _define("maximum", 2, _common, torch.maximum, gradients.maximum, bodies.maximum, cheap=True)
    _define("minimum", 2, _common, torch.minimum, gradients.minimum, bodies.minimum, cheap=True)
    _define("neg", 1, _no_bool, torch.neg, gradients.neg, bodies.neg, cheap=True)
    _define("abs", 1, _no_bool, torch.abs, gradients.abs, bodies.abs, cheap=True)
    _define("relu", 1, _no_bool, torch.relu, gradients.relu, bodies.relu, cheap=True)
    _define("floor", 1, _no_bool, torch.floor, gradients.none, bodies.floor, cheap=True)
    _define("ceil", 1, _no_bool, torch.ceil, gradients.none, bodies.ceil, cheap=True)
    _define("round", 1, _no_bool, torch.round, gradients.none, bodies.round, cheap=True)
    bounds = {"minimum": None, "maximum": None}
    _define(
        "clamp",
        1,
        _clamped,
        _clamp_reference,
        gradients.clamp,
        bodies.clamp,
        flops=2,
        attributes=bounds,
        cheap=True,
        application=maps.of_maps(1, maps.bounds),
    )


def _define_functions() -> None:
    functional = torch.nn.functional
    _define("exp", 1, _to_float, torch.exp, gradients.exp, bodies.exp)
    _define("log", 1, _to_float, torch.log, gradients.log, bodies.log)
    _define("expm1", 1, _to_float, torch.expm1, gradients.expm1, bodies.expm1)
    _define("log1p", 1, _to_float, torch.log1p, gradients.log1p, bodies.log1p)
    _define("sin", 1, _to_float, torch.sin, gradients.sin, bodies.sin)
    _define("cos", 1, _to_float, torch.cos, gradients.cos, bodies.cos)
    _define("sqrt", 1, _to_float, torch.sqrt, gradients.sqrt, bodies.sqrt)
    _define("rsqrt", 1, _to_float, torch.rsqrt, gradients.rsqrt, bodies.rsqrt)
    _define("tanh", 1, _to_float, torch.tanh, gradients.tanh, bodies.tanh)
    _define("erf", 1, _to_float, torch.erf, gradients.erf, bodies.erf)
    _define("sigmoid", 1, _to_float, torch.sigmoid, gradients.sigmoid, bodies.sigmoid, flops=4)
    _define("silu", 1, only_float, functional.silu, gradients.silu, bodies.silu, flops=4)
    approximate = {"approximate": "none"}
    _define(
        "gelu",
        1,
        only_float,
        _gelu_reference,
        gradients.gelu,
        bodies.gelu,
        flops=5,
        attributes=approximate,
        application=maps.of_maps(1, maps.approximations),
        terms=_size,
    )


def _define_logic() -> None:
    for kind in ("eq", "ne", "lt", "le", "gt", "ge"):
        reference: Reference = getattr(torch, kind)
        _define(kind, 2, _common, reference, gradients.none, bodies.comparison(kind), element=_bool)
    _define("logical_and", 2, _to_bool, torch.logical_and, gradients.none, bodies.logical_and, element=_bool)
    _define("logical_or", 2, _to_bool, torch.logical_or, gradients.none, bodies.logical_or, element=_bool)
    _define("logical_not", 1, _to_bool, torch.logical_not, gradients.none, bodies.logical_not, element=_bool)
    _define(
        "where",
        3,
        _choice,
        torch.where,
        gradients.where,
        bodies.where,
        flops=0,
        cheap=True,
        application=maps.of_choices,
    )
    _define(
        "cast",
        1,
        _as_given,
        _cast_reference,
        gradients.cast,
        bodies.cast,
        flops=0,
        element=_wanted,
        attributes={"dtype": dtypes.fp32},
        cheap=True,
        application=maps.of_maps(1, maps.real_dtypes),
    )


_define_arithmetic()
_define_functions()
_define_logic()
