"""`pin`: a result that is what it was, made by a kernel whose schedule the user has fixed in part.

The operator itself computes nothing and becomes no operation: the graph notes the knobs on the operation below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from tessera.dtypes import DType
from tessera.lazy.structures.structure import Structure
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import OPERATORS, Named, Operator, Typed, register

KNOBS = "knobs"
"""The attribute of a Graph IR operation that holds pinned knobs, as a schedule prints itself."""

SEEN_OTHERWISE: Final = ("reshape", "transpose")
"""Operators whose result is their operand's, all of it, under other indices: what is pinned is the operand's kernel."""


def why_not_pinned(structure: Structure) -> str:
    """Why no kernel of ours computes this result, whose knobs could be pinned; empty where one does."""
    while structure.operator is not None and structure.operator.name in SEEN_OTHERWISE:
        structure = structure.operands[0]
    if structure.operator is None:
        return "a tensor that exists has no kernel to pin"
    name = structure.operator.name
    return OPERATORS[name].kind.without_kernel.format(name)


def _operand_dtype(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _reference(x: torch.Tensor, *, knobs: str) -> torch.Tensor:
    return x


def _gradient(g: Any, operands: tuple[Any], out: Any, *, knobs: str) -> tuple[Any]:
    """The cotangent as it is: what is pinned is the kernel of the value."""
    return (g,)


def _body(e: Emitter[V], x: V, **attributes: object) -> V:
    return x


PIN = register(
    Operator(
        name="pin",
        family="elementwise",
        arity=(1, 1),
        operand_dtypes=_operand_dtype,
        reference=_reference,
        gradient=_gradient,
        body=_body,
        attributes={KNOBS: ""},
    )
)
