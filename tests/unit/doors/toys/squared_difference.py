"""A toy operator in a file: `squared_difference(a, b)`, and the function that users call."""

from __future__ import annotations

from typing import Any

import torch

from tessera import extend
from tessera.ops.algebra import sum_to


def _body(e: extend.Emitter[Any], a: Any, b: Any) -> Any:
    """(a - b)^2."""
    difference = e.sub(a, b)
    return e.mul(difference, difference)


def _gradient(g: Any, operands: Any, out: Any) -> tuple[Any, Any]:
    a, b = operands
    slope = g * 2.0 * (a - b)
    return sum_to(slope, a.shape), sum_to(-slope, b.shape)


def _reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b) ** 2


SQUARED_DIFFERENCE = extend.Operator(
    name="squared_difference",
    family="elementwise",
    arity=(2, 2),
    operand_dtypes=extend.only_float,
    reference=_reference,
    gradient=_gradient,
    body=_body,
    attributes={},
    cheap=True,
)
