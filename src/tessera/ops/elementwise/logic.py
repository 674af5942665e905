"""Comparisons, logic, choices and casts: `eq ne lt le gt ge logical_and logical_or logical_not where cast`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import torch

from tessera.dtypes import DType, bool_, fp32, int32
from tessera.ops.algebra import call, literal
from tessera.ops.applications import maps
from tessera.ops.elementwise.dtypes import as_given, choice, common, to_bool, truth, wanted
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Comparison, Emitter, V

N: TypeAlias = Any
"""A node."""


def _comparison(kind: Comparison) -> Callable[..., object]:
    def body(e: Emitter[V], a: V, b: V) -> V:
        # As i1, true would be -1 to a signed comparison.
        if a.dtype is bool_:
            a, b = e.cast(a, int32), e.cast(b, int32)
        return e.compare(kind, a, b)

    return body


def _where_gradient(g: N, condition: N, a: N, b: N, out: N) -> tuple[None, N, N]:
    """To the branch that was taken."""
    zero = literal(0, g.dtype)
    return None, call("where", condition, g, zero), call("where", condition, zero, g)


def _cast(e: Emitter[V], x: V, *, dtype: DType) -> V:
    return e.cast(x, dtype)


def _cast_gradient(g: N, x: N, out: N, *, dtype: DType) -> N:
    """Back to the operand's dtype; nothing through integers and bools."""
    if x.dtype.kind != "float" or dtype.kind != "float":
        return None
    return call("cast", g, dtype=x.dtype)


def _cast_reference(x: torch.Tensor, *, dtype: DType) -> torch.Tensor:
    rounded = x.to(dtype.torch)
    return rounded.to(torch.float64) if dtype.kind == "float" else rounded


ROWS = (
    *(
        elementwise(kind, _comparison(kind), None, getattr(torch, kind), common, truth)
        for kind in get_args(Comparison)
    ),
    elementwise("logical_and", lambda e, a, b: e.logical_and(a, b), None, torch.logical_and, to_bool, truth),
    elementwise("logical_or", lambda e, a, b: e.logical_or(a, b), None, torch.logical_or, to_bool, truth),
    elementwise("logical_not", lambda e, x: e.logical_not(x), None, torch.logical_not, to_bool, truth),
    elementwise(
        "where", lambda e, condition, a, b: e.select(condition, a, b), _where_gradient, torch.where, choice,
        cheap=True, application=maps.of_choices,
    ),
    elementwise(
        "cast", _cast, _cast_gradient, _cast_reference, as_given, wanted,
        attributes={"dtype": fp32}, cheap=True, application=maps.of_maps(1, maps.real_dtypes),
    ),
)  # fmt: skip
"""One row an operator: name, body, gradient, reference, dtypes of operands and result, and what else is special."""
