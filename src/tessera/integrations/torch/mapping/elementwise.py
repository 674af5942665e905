"""Maps: functions of one element, arithmetic, comparisons, choices and casts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch._inductor.inductor_prims

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, floating, maps

aten, prims = torch.ops.aten, torch.ops.prims
Number: TypeAlias = bool | int | float
Operand: TypeAlias = Tensor | Number


def _of_floats(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(floating(x))


def _of_fractions(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Integers are what these functions make of them."""
    return lambda x: x if x.dtype.kind != "float" else function(x)


def _of_numbers(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def translate(x: Tensor) -> Tensor:
        if x.dtype.kind == "bool":
            raise Unsupported("a bool operand")
        return function(x)

    return translate


for _name in (
    "acos acosh asin asinh atan atanh cos cosh erf erfinv exp exp2 expm1 log log10 log1p log2 rsqrt sigmoid sin sinh "
    "sqrt tan tanh"
).split():
    maps(getattr(aten, _name).default)(_of_floats(getattr(op, _name)))
for _name in "ceil floor round trunc".split():
    maps(getattr(aten, _name).default)(_of_fractions(getattr(op, _name)))
for _name in "abs neg relu".split():
    maps(getattr(aten, _name).default)(_of_numbers(getattr(op, _name)))
for _name in "eq ge gt le lt ne".split():
    maps(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(getattr(op, _name))


@maps(aten.isnan.default)
def isnan(x: Tensor) -> Tensor:
    return op.isnan(x)


@maps(aten.isinf.default)
def isinf(x: Tensor) -> Tensor:
    return op.isinf(x)


@maps(aten.reciprocal.default)
def reciprocal(x: Tensor) -> Tensor:
    return op.div(1.0, floating(x))


@maps(aten.sign.default, aten.sgn.default)
def sign(x: Tensor) -> Tensor:
    return op.sign(x)


@maps(aten.angle.default)
def angle(x: Tensor) -> Tensor:
    turned = op.where(op.lt(x, 0), op.full((), math.pi, floating(x).dtype), op.zeros((), floating(x).dtype))
    return op.where(op.isnan(x), x, turned) if x.dtype.kind == "float" else turned


@maps(aten.ldexp.Tensor)
def ldexp(x: Tensor, exponent: Tensor, *, wanted: Wanted) -> Tensor:
    """By powers of two in 64 bits: that of an exponent may be infinite where the product is not."""
    if exponent.dtype.kind == "float":
        return op.mul(x.to(wanted.dtype), op.exp2(exponent.to(wanted.dtype)))
    whole = exponent.to("float64")
    near = op.clamp(whole, -1022, 1023)
    rest = op.clamp(op.sub(whole, near), -1022, 1023)  # first, so that one product rounds what is nearly nothing
    return op.mul(op.mul(x.to("float64"), op.exp2(rest)), op.exp2(near)).to(wanted.dtype)


@maps(aten.silu.default)
def silu(x: Tensor) -> Tensor:
    return op.silu(x)


@maps(aten.gelu.default)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return op.gelu(x, approximate)


@maps(aten.leaky_relu.default)
def leaky_relu(x: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return op.leaky_relu(x, negative_slope)


@maps(aten.hardswish.default)
def hardswish(x: Tensor) -> Tensor:
    return op.hardswish(x)


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _scaled(b: Operand, alpha: Number) -> Any:
    return b if alpha == 1 else op.mul(b, alpha) if isinstance(b, Tensor) else b * alpha


@maps(aten.add.Tensor, aten.add.Scalar)
def add(a: Tensor, b: Operand, alpha: Number = 1) -> Tensor:
    return op.add(a, _scaled(b, alpha))


@maps(aten.sub.Tensor, aten.sub.Scalar)
def sub(a: Tensor, b: Operand, alpha: Number = 1) -> Tensor:
    return op.sub(a, _scaled(b, alpha))


@maps(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(a: Tensor, b: Operand, alpha: Number = 1) -> Tensor:
    return op.sub(b, _scaled(a, alpha))


@maps(aten.mul.Tensor, aten.mul.Scalar)
def mul(a: Operand, b: Operand) -> Tensor:
    return op.mul(a, b)


@maps(aten.div.Tensor, aten.div.Scalar)
def div(a: Operand, b: Operand) -> Tensor:
    return op.div(a, b)


@maps(aten.atan2.default)
def atan2(a: Tensor, b: Tensor) -> Tensor:
    return op.atan2(floating(a), floating(b))


@maps(aten.hypot.default)
def hypot(a: Tensor, b: Tensor) -> Tensor:
    return op.hypot(floating(a), floating(b))


@maps(aten.nextafter.default)
def nextafter(a: Tensor, b: Tensor) -> Tensor:
    return op.nextafter(a, b)


@maps(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(a: Tensor, b: Operand, *, wanted: Wanted) -> Tensor:
    sign = b.to(wanted.dtype) if isinstance(b, Tensor) else op.full((), b, wanted.dtype)
    return op.copysign(a.to(wanted.dtype), sign)


@maps(prims.fma.default)
def fma(a: Tensor, b: Operand, c: Operand) -> Tensor:
    return op.add(op.mul(a, b), c)


@maps(aten.maximum.default)
def maximum(a: Tensor, b: Tensor) -> Tensor:
    return op.maximum(a, b)


@maps(aten.minimum.default)
def minimum(a: Tensor, b: Tensor) -> Tensor:
    return op.minimum(a, b)


def _or_other(choose: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    """The larger or smaller one; of a NaN and a number, the number."""

    def translate(a: Tensor, b: Tensor, *, wanted: Wanted) -> Tensor:
        first, second = a.to(wanted.dtype), b.to(wanted.dtype)
        chosen = choose(first, second)
        if wanted.dtype.kind != "float":
            return chosen
        return op.where(op.isnan(first), second, op.where(op.isnan(second), first, chosen))

    return translate


maps(aten.fmax.default)(_or_other(op.maximum))
maps(aten.fmin.default)(_or_other(op.minimum))


@maps(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar)
def power(a: Tensor, b: Operand) -> Tensor:
    if not isinstance(b, Tensor) and b in (2, 3) and a.dtype.kind == "float":
        square = op.mul(a, a)
        return square if b == 2 else op.mul(square, a)
    return op.pow(a, b)


@maps(aten.pow.Scalar)
def power_of_number(a: Number, b: Tensor, *, wanted: Wanted) -> Tensor:
    return op.pow(op.full((), a, wanted.dtype), b.to(wanted.dtype))


@maps(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None, *, wanted: Wanted) -> Tensor:
    return op.clamp(x.to(wanted.dtype), min, max)


@maps(aten.clamp_min.default)
def clamp_min(x: Tensor, least: Number, *, wanted: Wanted) -> Tensor:
    return op.clamp(x.to(wanted.dtype), min=least)


@maps(aten.clamp_max.default)
def clamp_max(x: Tensor, most: Number, *, wanted: Wanted) -> Tensor:
    return op.clamp(x.to(wanted.dtype), max=most)


@maps(aten.hardtanh.default)
def hardtanh(x: Tensor, least: Number = -1, most: Number = 1) -> Tensor:
    if x.dtype.kind == "int":  # torch makes integers of the bounds
        least, most = int(least), int(most)
    return op.clamp(x, least, most)


# -- truth ------------------------------------------------------------------------------------------------------------


def _truth(x: Operand) -> Any:
    return x if isinstance(x, Tensor) and x.dtype.kind == "bool" else op.ne(x, 0) if isinstance(x, Tensor) else bool(x)


@maps(aten.logical_not.default)
def logical_not(x: Tensor) -> Tensor:
    return op.logical_not(_truth(x))


@maps(aten.logical_and.default)
def logical_and(a: Tensor, b: Tensor) -> Tensor:
    return op.logical_and(_truth(a), _truth(b))


@maps(aten.logical_or.default)
def logical_or(a: Tensor, b: Tensor) -> Tensor:
    return op.logical_or(_truth(a), _truth(b))


@maps(aten.logical_xor.default)
def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    return op.ne(_truth(a), _truth(b))


# -- choices and casts ------------------------------------------------------------------------------------------------


@maps(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Tensor, a: Operand, b: Operand, *, wanted: Wanted) -> Tensor:
    sides = [each.to(wanted.dtype) if isinstance(each, Tensor) else op.full((), each, wanted.dtype) for each in (a, b)]
    return op.where(_truth(condition), *sides)


@maps(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Operand, *, wanted: Wanted) -> Tensor:
    return where(mask, value, x, wanted=wanted)


@maps(aten._to_copy.default)
def to_copy(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x if dtype is None else x.to(dtype)


@maps(prims.convert_element_type.default)
def convert_element_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


@maps(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def same(x: Tensor) -> Tensor:
    return x


@maps(aten.copy.default)
def copy(x: Tensor, source: Tensor) -> Tensor:
    return op.broadcast_to(source.to(x.dtype), x.shape)


@maps(operator.getitem)
def getitem(results: Any, place: int) -> Tensor:
    found: Tensor = results[place]
    return found
