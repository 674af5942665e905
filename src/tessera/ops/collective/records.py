"""`constrain`: a tensor that is to lie on its mesh as a layout says. Its values are those of its operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.layouts import Layout
from tessera.ops.algebra import call
from tessera.ops.applications.places import of_whole_values
from tessera.ops.library import define
from tessera.ops.record import Named, Operator, Typed

N: TypeAlias = Any

PARTS: Final = "parts"
"""In place of a layout: a sum over devices that is a result stays pending, and whoever reads it forms it."""

Wanted: TypeAlias = Layout | Literal["parts"] | None


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _reference(x: torch.Tensor, *, layout: Wanted) -> torch.Tensor:
    return x


def _gradient(g: N, operands: tuple[N], out: N, *, layout: Wanted) -> tuple[N]:
    """The cotangent of a value lies as the value does."""
    return (call("constrain", g, layout=layout),)


def _copy(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(inputs[0])


CONSTRAIN: Final[Operator] = define(
    "constrain",
    _copy,
    {"layout": None},
    operand_dtypes=_as_given,
    anchor=anchor_rules.broadcast,
    reference=_reference,
    gradient=_gradient,
    application=of_whole_values,
)
"""On a single device a copy; on a mesh no operation, but what moves between devices so that the layout is met."""
