"""Operators of meshes: where a tensor is to lie, what devices do together, and functions of the shards of each.

On a single device all three are their first operand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import ADD
from tessera.lazy import layouts
from tessera.lazy.layouts import Layout
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications.places import of_whole_values
from tessera.ops.collective.steps import AxisStep
from tessera.ops.library import define
from tessera.ops.record import Named, Operator, Typed

N: TypeAlias = Any

Wanted: TypeAlias = Layout | None
"""A layout with pending sums has them stay so where they are a result: whoever reads it forms them."""


class DeviceRegion(Protocol):
    """What every device computes of its shards; `sharding/regions` has it."""

    def result(self, index: int) -> tuple[Shape, DType]:
        """The shape and dtype of a result, a tensor of the mesh."""

    def cotangents(self, index: int, g: N, operands: Sequence[N]) -> tuple[N | None, ...]:
        """The cotangent of each operand, for one of a result."""


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _reference(x: torch.Tensor, *, layout: Wanted) -> torch.Tensor:
    return x


def _gradient(g: N, operands: tuple[N], out: N, *, layout: Wanted) -> tuple[N]:
    """The cotangent of a value lies as the value does. That of the parts of a sum is the same for all of them."""
    laid = layouts.layout(layout.mesh, layout.dims) if layout is not None else None
    return (call("constrain", g, layout=laid),)


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


def _after(name: str, operands: Sequence[Typed], dtypes: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    step: AxisStep | None = attributes["step"]
    shape = operands[0].shape
    return shape if step is None else step.result(shape), dtypes[0]


def _alone(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    assert attributes["step"] is None, "devices of a mesh take their steps in the program of the mesh"
    outputs[0].copy_(inputs[0])


def _across_reference(x: torch.Tensor, *, step: AxisStep | None) -> torch.Tensor:
    assert step is None, "what several devices do is no function of one tensor"
    return x


def _across_gradient(g: N, operands: tuple[N], out: N, *, step: AxisStep | None) -> tuple[N]:
    if step is None:
        return (g,)
    if step.reduction != ADD:
        return (_extreme_gradient(g, operands[0], out, step),)
    for each in step.adjoints:
        g = call("across", g, step=each)
    return (g,)


def _extreme_gradient(g: N, x: N, out: N, step: AxisStep) -> N:
    """Of a maximum or minimum over devices: shared out to those that have it."""
    if step.kind != "AllReduce" or step.reduction not in ("max", "min"):
        raise ArgumentError(
            f"{step} by {step.reduction} has no gradient", hints=["sums, averages, max and min over devices have one"]
        )
    total = dataclasses.replace(step, reduction=ADD)
    vary = dataclasses.replace(total, kind="Vary")
    has = call("cast", call("eq", x, call("across", out, step=vary)), dtype=x.dtype)
    return has * call("across", g / call("across", has, step=total), step=vary)


ACROSS: Final[Operator] = define(
    "across",
    _alone,
    {"step": None},
    operand_dtypes=_as_given,
    result=_after,
    reference=_across_reference,
    gradient=_across_gradient,
    application=of_whole_values,
)
"""A step of the devices along an axis of a mesh, where each computes with tensors of its own (`steps.py`)."""


def _operands_as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _of_region(name: str, operands: Sequence[Typed], dtypes: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    region: DeviceRegion | None = attributes["region"]
    return (operands[0].shape, dtypes[0]) if region is None else region.result(attributes["index"])


def _first(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    assert attributes["region"] is None, "regions are computed in the program of the mesh"
    outputs[0].copy_(inputs[0])


def _region_reference(*operands: torch.Tensor, region: DeviceRegion | None, index: int) -> torch.Tensor:
    assert region is None, "what several devices do is no function of whole tensors"
    return operands[0]


def _region_gradient(
    g: N, operands: tuple[N, ...], out: N, *, region: DeviceRegion | None, index: int
) -> tuple[N | None, ...]:
    if region is None:
        return g, *[None] * (len(operands) - 1)
    return region.cotangents(index, g, operands)


SHARD_MAP: Final[Operator] = define(
    "shard_map",
    _first,
    {"region": None, "index": 0},
    arity=(1, 1 << 16),
    operand_dtypes=_operands_as_given,
    result=_of_region,
    reference=_region_reference,
    gradient=_region_gradient,
    application=of_whole_values,
)
"""A result of a function that every device of a mesh applies to its shards."""
