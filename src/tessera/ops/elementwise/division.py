"""Division with rest: `fmod` by torch's library, and `//`, `%` and `fmod` as users call them.

`//` rounds down and `%` has the sign of the divisor, as in Python and torch. Integers are not divided by zero:
DivisionByZeroError (E_ZERO_DIVISION); floats give what torch gives, infinities and NaN.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch

from tessera.dtypes import DType, accumulator, wrapped
from tessera.errors import DivisionByZeroError
from tessera.lazy.leaves.conversion import as_pair
from tessera.lazy.node import Node
from tessera.lazy.structures.promotion import broadcast_shape, common_dtype
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, sum_to
from tessera.ops.applications import maps
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, like
from tessera.ops.extension import only_float, same_shape_result
from tessera.ops.library import define, per_element
from tessera.ops.record import Named, Typed, dtype_error, shape_error

N: TypeAlias = Any


# -- fmod -------------------------------------------------------------------------------------------------------------


def _broadcast(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape = broadcast_shape([operand.shape for operand in operands])
    if shape is None:
        raise shape_error(name, operands, "extents must agree from the last dimension on, or be 1")
    return shape, common_dtype(operands)  # not `cast[0]`: a number beside bf16 is fp32


def _no_bytes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The floating-point dtype in which operands meet. Raises DTypeError for 8-bit floats, and others."""
    met = only_float(name, operands, attributes)
    if met[0].itemsize == 1:
        raise dtype_error(name, operands, "not defined on 8-bit floats", ["cast to a wider dtype"])
    return met


def _fmod(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    a, b = inputs
    (result,) = outputs
    torch.fmod(a, b, out=result)
    # torch's vector code gives NaN where the quotient is beyond the dtype's range.
    wrong = result.isnan()
    if wrong.any():
        wrong &= a.isfinite() & ~b.isnan() & (b != 0)
        left = numpy.fmod(*(each.expand(wrong.shape)[wrong].double().cpu().numpy() for each in inputs))
        result[wrong] = torch.from_numpy(left).to(result)


def _fmod_gradient(g: N, operands: tuple[N, N], out: N) -> tuple[N, N]:
    """fmod(a, b) = a - trunc(a / b) b."""
    a, b = operands
    return sum_to(g, a.shape), sum_to(-(g * truncated(a / b)), b.shape)


def _of_floats(chance: random.Random, x: AbstractValue) -> Application | None:
    """Divisors from 1 to 3: what is left is continuous in neither operand, and rounding may decide it."""
    if x.dtype.kind != "float" or x.dtype.itemsize == 1:
        return None
    return Application(
        (WantedOperand(x.shape, x.dtype, below=20), WantedOperand(maps.broadcasting(chance, x.shape), x.dtype, 4))
    )


define(
    "fmod",
    _fmod,
    {},
    arity=(2, 2),
    operand_dtypes=_no_bytes,
    result=_broadcast,
    flops=per_element(3),
    reference=torch.fmod,
    gradient=_fmod_gradient,
    application=_of_floats,
)

# -- checked_divisor --------------------------------------------------------------------------------------------------


def refuse_zero(divisor: torch.Tensor) -> None:
    """Raises DivisionByZeroError where an element is 0."""
    if not divisor.all():
        place = tuple((divisor == 0).nonzero()[0].tolist())
        where = f" at {place}" if place else ""
        raise _division_by_zero(f"the divisor is 0{where}")


def _division_by_zero(what: str) -> DivisionByZeroError:
    return DivisionByZeroError(
        f"division of integers with rest: {what}",
        hints=["op.where(b == 0, 1, b) keeps zeros away", "floats are divided by 0: cast to fp32"],
    )


def _only_integers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if operands[0].dtype.kind != "int":
        raise dtype_error("division with rest", operands, "defined on integers and floats", ["cast to int64"])
    return [operands[0].dtype]


def _checked(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    refuse_zero(inputs[0])
    outputs[0].copy_(inputs[0])


def _checked_reference(divisor: torch.Tensor) -> torch.Tensor:
    refuse_zero(divisor)
    return divisor


def _none(g: N, operands: tuple[N, ...], out: N) -> tuple[None, ...]:
    return (None,) * len(operands)


def _of_divisors(chance: random.Random, x: AbstractValue) -> Application | None:
    """A tensor without elements: no others are known to hold no zero."""
    return Application((like(x),)) if x.dtype.kind == "int" and 0 in x.shape else None


define(
    "checked_divisor",
    _checked,
    {},
    operand_dtypes=_only_integers,
    result=same_shape_result,
    reference=_checked_reference,
    gradient=_none,
    application=_of_divisors,
)

# -- as users call it -------------------------------------------------------------------------------------------------


def truncated(x: Node) -> Any:
    """The integer next to x toward zero, in the dtype of x."""
    if x.dtype.kind != "float":
        return call("floor", x)
    return call("where", call("lt", x, 0.0), call("ceil", x), call("floor", x))


def _operands(a: object, b: object) -> tuple[Any, Any, DType]:
    """Both operands, no zero among integer divisors, and the dtype in which they meet."""
    dividend, divisor = as_pair(a, b)
    met = common_dtype([dividend.structure, divisor.structure])
    if met.kind == "int":
        if isinstance(b, int):
            if not wrapped(b, met):  # 256 is 0 beside uint8
                raise _division_by_zero("the divisor is 0")
        else:
            divisor = call("checked_divisor", call("cast", divisor, dtype=met))
    return dividend, divisor, met


def _wide_operands(a: Node, b: Node, met: DType) -> tuple[Any, Any]:
    """Floats in the dtype in which they are divided: fp32 for narrower ones, as in torch."""
    wide = accumulator(met)
    return tuple(x if x.dtype is wide else call("cast", x, dtype=wide) for x in (a, b))  # type: ignore[return-value]


def _is_negative(x: Node) -> Any:
    return call("lt", x, 0)


def floor_divide(a: object, b: object) -> Any:
    """a // b."""
    dividend, divisor, met = _operands(a, b)
    if met.kind != "float":
        return call("floor_divide", dividend, divisor)
    x, y = _wide_operands(dividend, divisor, met)
    rest = call("fmod", x, y)
    quotient = call("div", x - rest, y)
    off = call("logical_and", call("ne", rest, 0.0), call("ne", _is_negative(y), _is_negative(rest)))
    quotient = call("where", off, quotient - 1.0, quotient)
    lower = call("floor", quotient)
    lower = call("where", call("gt", quotient - lower, 0.5), lower + 1.0, lower)
    # A zero has the sign of the exact quotient; by zero it is that itself.
    exact = call("div", x, y)
    whole = call("where", call("eq", quotient, 0.0), exact * 0.0, lower)
    whole = call("where", call("eq", y, 0.0), exact, whole)
    return call("cast", whole, dtype=met)


def remainder(a: object, b: object) -> Any:
    """a % b: of the divisor's sign."""
    dividend, divisor, met = _operands(a, b)
    if met.kind != "float":
        return dividend - call("floor_divide", dividend, divisor) * divisor
    x, y = _wide_operands(dividend, divisor, met)
    rest = call("fmod", x, y)
    off = call("logical_and", call("ne", rest, 0.0), call("ne", _is_negative(y), _is_negative(rest)))
    return call("cast", call("where", off, rest + y, rest), dtype=met)


def fmod(a: object, b: object) -> Any:
    """What is left of a division rounded toward zero: of the dividend's sign."""
    dividend, divisor, met = _operands(a, b)
    if met.kind == "float":
        return call("fmod", dividend, divisor)
    rest = dividend - call("floor_divide", dividend, divisor) * divisor
    off = call("logical_and", call("ne", rest, 0), call("ne", _is_negative(rest), _is_negative(dividend)))
    return call("where", off, rest - divisor, rest)
