"""Rules for dtypes, shapes and counts that most records share, and the registration of users' operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.lazy.structures.promotion import common_dtype
from tessera.lazy.structures.structure import Shape
from tessera.ops.record import OPERATORS, Named, Operator, Typed, dtype_error, register


def only_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """All operands in their common floating-point dtype. Raises DTypeError for others."""
    common = common_dtype(operands)
    if common.kind != "float":
        raise dtype_error(name, operands, "defined on floating-point elements only", ["cast to fp32"])
    return [common] * len(operands)


def same_shape_result(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    """The shape and the dtype of the first operand."""
    return operands[0].shape, cast[0]


def no_gradient(name: str) -> Callable[..., NoReturn]:
    """The gradient rule of an operator that has none: raises ArgumentError (E_ARGUMENT) where one is asked for."""

    def refuse(g: Any, operands: Any, out: Any, **attributes: Any) -> NoReturn:
        raise ArgumentError(f"{name} has no gradient", hints=["its record's `gradient` would say how to make one"])

    return refuse


def new_operator(operator: Operator) -> Operator:
    """Registers an operator whose name a user chose. Raises ArgumentError (E_ARGUMENT) for a name that cannot be."""
    if not operator.name.isidentifier():
        raise ArgumentError(f"an operator called {operator.name!r}", hints=["a name is a Python identifier"])
    if operator.name in OPERATORS or operator.name in ("constant", "library"):
        raise ArgumentError(f"there is an operator called {operator.name!r} already", hints=["choose another name"])
    return register(operator)
