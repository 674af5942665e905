"""Operators between a mesh and parts of it, each of which computes with tensors of its own: `to_part` hands a part of
the devices what they have, and `from_parts` takes what several parts made. Nothing moves: shards stay where they are.

A part is a run of the places along one axis. The first dimension of a tensor of the whole mesh [devices, rows, ...] is
that of the places along the axis; what those of a part have, [places * rows, ...], is a tensor of the part, whose rows
stay split along other axes. The two are each other's gradients, and nobody applies them on a single device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.errors import ShapeMismatchError
from tessera.lazy.devices import mesh_device
from tessera.lazy.layouts import Coordinates, MeshShape
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications.places import of_whole_values
from tessera.ops.library import define
from tessera.ops.record import Named, Operator, Typed

N: TypeAlias = Any


@dataclass(frozen=True)
class MeshPart:
    """One of `count` equal runs of the places along an axis of a mesh. Where it is a single place, the part may have
    the axis still, of one device, or not (`keeps_axis`).
    """

    whole: MeshShape
    axis: str
    index: int
    count: int
    keeps_axis: bool = True

    @property
    def size(self) -> int:
        """The number of places along the axis."""
        return self.whole.size(self.axis) // self.count

    @property
    def grid(self) -> MeshShape:
        """The axes of the part, a mesh itself."""
        kept = [(name, self.size if name == self.axis else size) for name, size in self.whole.axes]
        return MeshShape(tuple(pair for pair in kept if self.keeps_axis or pair[0] != self.axis))

    @property
    def key(self) -> int | slice:
        """The places, as a mesh is indexed by them."""
        first = self.index * self.size
        return slice(first, first + self.size) if self.keeps_axis else first

    def coordinates(self, at: Coordinates) -> Coordinates | None:
        """The coordinates in the part of the device at some of the whole mesh; None for one outside."""
        index, place = divmod(at[self.axis], self.size)
        return {**at, self.axis: place} if index == self.index else None

    def __str__(self) -> str:
        first = self.index * self.size
        return f"{self.axis} {first}:{first + self.size}"


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _one_of(name: str, operands: Sequence[Typed], dtypes: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    part: MeshPart | None = attributes["part"]
    shape = operands[0].shape
    if part is None:
        return shape, dtypes[0]
    if len(shape) < 2 or shape[0] != part.whole.size(part.axis):
        raise ShapeMismatchError(f"{name}: shape {shape} for parts of {part.whole} along {part.axis}")
    return (part.size * shape[1], *shape[2:]), dtypes[0]


def _all_of(name: str, operands: Sequence[Typed], dtypes: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    parts: tuple[MeshPart, ...] | None = attributes["parts"]
    shape = operands[0].shape
    if parts is None:
        return shape, dtypes[0]
    is_one = all(operand.shape == shape for operand in operands) and all(dtype is dtypes[0] for dtype in dtypes)
    if not is_one or not shape or shape[0] % parts[0].size:
        shown = ", ".join(f"{dtype}{list(each.shape)}" for each, dtype in zip(operands, dtypes, strict=True))
        raise ShapeMismatchError(f"{name}: parts of a mesh made {shown}", hints=["one shape and one dtype"])
    size = parts[0].size
    return (size * parts[0].count, shape[0] // size, *shape[1:]), dtypes[0]


def _first(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    assert not any(attributes.values()), "parts of a mesh compute in the program of the mesh"
    outputs[0].copy_(inputs[0])


def _part_reference(x: torch.Tensor, *, part: MeshPart | None) -> torch.Tensor:
    assert part is None, "a single device has no parts"
    return x


def _parts_reference(*values: torch.Tensor, parts: tuple[MeshPart, ...] | None) -> torch.Tensor:
    assert parts is None, "a single device has no parts"
    return values[0]


def _part_gradient(g: N, operands: tuple[N], out: N, *, part: MeshPart | None) -> tuple[N]:
    """Zeros on the other parts, which have no use of this one's values."""
    return (g if part is None else call("from_parts", g, parts=(part,)),)


def _parts_gradient(g: N, operands: tuple[N, ...], out: N, *, parts: tuple[MeshPart, ...] | None) -> tuple[N, ...]:
    return (g,) if parts is None else tuple(call("to_part", g, part=part) for part in parts)


def _device_of_part(attributes: Named, device: str) -> str:
    part: MeshPart | None = attributes["part"]
    return device if part is None else mesh_device(part.grid)


def _device_of_whole(attributes: Named, device: str) -> str:
    parts: tuple[MeshPart, ...] | None = attributes["parts"]
    return device if parts is None else mesh_device(parts[0].whole)


TO_PART: Final[Operator] = define(
    "to_part",
    _first,
    {"part": None},
    operand_dtypes=_as_given,
    result=_one_of,
    reference=_part_reference,
    gradient=_part_gradient,
    device=_device_of_part,
    application=of_whole_values,
)
"""What the devices of a part of a mesh have of a tensor, as a tensor of that part."""

FROM_PARTS: Final[Operator] = define(
    "from_parts",
    _first,
    {"parts": None},
    arity=(1, 1 << 16),
    operand_dtypes=_as_given,
    result=_all_of,
    reference=_parts_reference,
    gradient=_parts_gradient,
    device=_device_of_whole,
    application=of_whole_values,
)
"""Tensors of parts of a mesh, one behind the other, as one of the whole mesh; zeros for parts that give none."""
