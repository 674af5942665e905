"""An elementwise operator in one row: body, gradient, reference, dtypes and cheapness side by side."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tessera.ops.algebra import sum_to
from tessera.ops.extension import only_float
from tessera.ops.record import ElementRule, Named, OperandDTypes, Operator, Typed

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def elementwise(
    name: str,
    body: Callable[..., Any],
    gradient: Callable[..., Any] | None,
    reference: Callable[..., Any],
    operand_dtypes: OperandDTypes = only_float,
    element: ElementRule | None = None,
    *,
    attributes: Named = _NONE,
    **fields: Any,
) -> Operator:
    """The record of an operator that computes an element from the elements at its place; operands broadcast.

    `body(emitter, *values)` takes as many values as the operator has operands. `gradient(cotangent, *operands, result)`
    gives what flows back to the operand, a tuple for several, in the result's shape: it is summed over what was
    broadcast; None stands for no gradient, as of results that do not vary continuously. Attributes come to all three as
    keywords. The result's dtype is by default that of the last operand after casts, and `fields` are further
    ones of `Operator`.
    """
    count = sum(each.kind is not each.KEYWORD_ONLY for each in inspect.signature(body).parameters.values()) - 1
    return Operator(
        name=name,
        family="elementwise",
        arity=(count, count),
        operand_dtypes=operand_dtypes,
        element=element or _last,
        advice=_advice,
        reference=reference,
        gradient=_no_gradient if gradient is None else _to_operands(gradient),
        body=body,
        attributes=attributes,
        **fields,
    )


def _last(name: str, operands: Sequence[Typed], cast: Sequence[Any], attributes: Named) -> Any:
    return cast[-1]


def _advice(operands: Sequence[Typed], attributes: Named) -> Sequence[str]:
    return ["extents must agree from the last dimension on, or be 1"]


def _no_gradient(cotangent: Any, operands: tuple[Any, ...], result: Any, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


def _to_operands(rule: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The gradient of a broadcasting operator: what the rule gives, summed over what each operand was spread along."""

    @functools.wraps(rule)
    def gradient(cotangent: Any, operands: tuple[Any, ...], result: Any, **attributes: Any) -> tuple[Any, ...]:
        found = rule(cotangent, *operands, result, **attributes)
        parts = found if isinstance(found, tuple) else (found,)
        pairs = zip(parts, operands, strict=True)
        return tuple(None if part is None else sum_to(part, operand.shape) for part, operand in pairs)

    return gradient
