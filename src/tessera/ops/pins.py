"""`pin`: a result that is what it was, made by a kernel whose schedule the user has fixed in part.

The operator itself computes nothing and becomes no operation: the graph notes the knobs on the operation below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera.dtypes import DType
from tessera.lazy.structure import Shape
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, register

KNOBS = "knobs"
"""The attribute of a Graph IR operation that holds pinned knobs, as a schedule prints itself."""


def _operand_dtype(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _operand(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, cast[0]


def _nothing(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return 0


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
        result=_operand,
        flops=_nothing,
        bytes_moved=_nothing,
        reference=_reference,
        gradient=_gradient,
        body=_body,
        attributes={KNOBS: ""},
    )
)
