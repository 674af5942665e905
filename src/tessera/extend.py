"""Operators of your own: a record, registered under a name, and the function that users call (docs/tile-bodies.md).

MISH = extend.register(extend.Operator(name="mish", family="elementwise", ...))
mish = extend.function(MISH)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tessera.doors.calls.nodes import call, node, on
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.ops import oracle
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Emitter
from tessera.ops.extension import (
    new_operator,
    no_gradient,
    only_float,
)
from tessera.ops.families import FAMILIES as OPERATOR_FAMILIES
from tessera.ops.record import Operator
from tessera.ops.window.records import GEOMETRY, windows_of

__all__ = [
    "FAMILIES",
    "GEOMETRY",
    "Emitter",
    "Operator",
    "elementwise",
    "function",
    "no_gradient",
    "only_float",
    "reference",
    "register",
    "windows_of",
]

FAMILIES: Final = tuple(name for name, family in OPERATOR_FAMILIES.items() if family.written_by_users)
"""The families that operators of your own may be of: what their kernels do is what their bodies say."""


def register(operator: Operator) -> Operator:
    """Enters an operator under its name, and gives it. Raises ArgumentError (E_ARGUMENT) for a name that is taken or is
    no identifier, and for a family that is none of `FAMILIES`.
    """
    known = OPERATOR_FAMILIES.get(operator.family)
    if known is None or not known.written_by_users:
        raise ArgumentError(
            f"{operator.name}: an operator of family {operator.family!r}", hints=[f"families: {', '.join(FAMILIES)}"]
        )
    return new_operator(operator)


def function(operator: Operator) -> Callable[..., Tensor]:
    """What users call: tensors of any library, then attributes by keyword, and `stream=`; gives a lazy tensor.

    The function raises ArgumentError (E_ARGUMENT) for attributes that the operator does not have.
    """

    def apply(*operands: object, stream: Any = None, **attributes: Any) -> Tensor:
        unknown = attributes.keys() - operator.attributes.keys()
        if unknown:
            raise ArgumentError(
                f"{operator.name} has no attribute {sorted(unknown)[0]!r}",
                hints=[f"it has {', '.join(operator.attributes) or 'none'}"],
            )
        return on(call(operator.name, *map(node, operands), **attributes), stream)

    apply.__name__ = apply.__qualname__ = operator.name
    apply.__doc__ = operator.summary or operator.body.__doc__ or f"The operator `{operator.name}`."
    return apply


def reference(tensor: Tensor) -> torch.Tensor:
    """The value of a pending tensor by the references of all its operators: floats in float64. Nothing is compiled."""
    return oracle.reference(tensor)
