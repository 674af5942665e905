"""Division with rest, and bits of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps

aten = torch.ops.aten
Operand: TypeAlias = Tensor | bool | int | float


def _operands(wanted: Wanted, *operands: Operand) -> list[Any]:
    """Operands in the dtype of the result; a number stays one. Raises Unsupported for truth values, which torch divides
    as it does nowhere else.
    """
    if wanted.dtype.kind == "bool":
        raise Unsupported("truth values")
    return [each.to(wanted.dtype) if isinstance(each, Tensor) else each for each in operands]


def _nonzero(divisor: Operand, wanted: Wanted) -> None:
    if not isinstance(divisor, Tensor) and not divisor and wanted.dtype.kind != "float":
        raise Unsupported("a division of integers by 0, which torch refuses")


@maps(aten.floor_divide.default)
def floor_divide(a: Operand, b: Operand, *, wanted: Wanted) -> Tensor:
    _nonzero(b, wanted)
    return op.floor_divide(*_operands(wanted, a, b))


@maps(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(a: Operand, b: Operand, *, wanted: Wanted) -> Tensor:
    _nonzero(b, wanted)
    return op.remainder(*_operands(wanted, a, b))


@maps(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(a: Operand, b: Operand, *, wanted: Wanted) -> Tensor:
    _nonzero(b, wanted)
    return op.fmod(*_operands(wanted, a, b))


@maps(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(a: Operand, b: Operand, *, rounding_mode: str | None = None, wanted: Wanted) -> Tensor:
    if rounding_mode is None:
        return op.div(a, b)
    if rounding_mode == "floor":
        return floor_divide(a, b, wanted=wanted)
    _nonzero(b, wanted)
    first, second = _operands(wanted, a, b)
    if wanted.dtype.kind == "float":
        return op.trunc(op.div(first, second))
    return op.floor_divide(op.sub(first, op.fmod(first, second)), second)


def _of_bits(bits: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    def translate(a: Operand, b: Operand, *, wanted: Wanted) -> Tensor:
        first, second = (
            each.to(wanted.dtype) if isinstance(each, Tensor) else op.full((), each, wanted.dtype) for each in (a, b)
        )
        return bits(first, second)

    return translate


for _name, _shift in (("and", False), ("or", False), ("xor", False), ("left_shift", True), ("right_shift", True)):
    _packet = getattr(aten, f"bitwise_{_name}")
    _forms = ("Tensor", "Tensor_Scalar", "Scalar_Tensor") if _shift else ("Tensor", "Scalar", "Scalar_Tensor")
    maps(*(getattr(_packet, form) for form in _forms))(_of_bits(getattr(op, f"bitwise_{_name}")))


@maps(aten.bitwise_not.default)
def bitwise_not(x: Tensor) -> Tensor:
    return op.bitwise_not(x)
