"""What devices along an axis of a mesh do together, step by step, and what each step's gradient is.

Where every device computes with tensors of its own, a value is *varying* along an axis of the mesh, or it is the same
on all devices along it. A step says which it takes and which it gives, so that steps come in pairs, each the gradient
of the other:

    AllReduce (a sum)  varying -> same      Vary   same -> varying, and nothing moves
    AllGather          varying -> same      Part   same -> varying: each device keeps its part
    Broadcast          varying -> same      Keep   same -> varying: zeros but on one device
    ReduceScatter      varying -> varying   AllGather, then Vary
    AllToAll           varying -> varying   AllToAll, the other way round
    Permute            varying -> varying   Permute, the other way round
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tessera.ir.anchors.anchor import ADD, Reduction
from tessera.lazy.structures.structure import Shape

AxisStepKind: TypeAlias = Literal[
    "AllReduce", "AllGather", "Broadcast", "ReduceScatter", "AllToAll", "Permute", "Vary", "Part", "Keep"
]

TAKES_THE_SAME: Final = frozenset({"Vary", "Part", "Keep"})
"""Steps whose operand is the same on all devices; that of the others varies."""

GIVES_THE_SAME: Final = frozenset({"AllReduce", "AllGather", "Broadcast"})
"""Steps whose result is the same on all devices; that of the others varies."""

_INVERSE: Final[dict[AxisStepKind, AxisStepKind]] = {
    "AllReduce": "Vary",
    "Vary": "AllReduce",
    "AllGather": "Part",
    "Part": "AllGather",
    "Broadcast": "Keep",
    "Keep": "Broadcast",
    "AllToAll": "AllToAll",
    "Permute": "Permute",
}


@dataclass(frozen=True)
class AxisStep:
    """One step of `size` devices along an axis.

    `dim` is the dimension along which parts are gathered, scattered, kept, or, of an AllToAll, split; `before` the one
    along which that brings parts together. `by` is how many places a permutation shifts, or the place that a
    broadcast comes from.
    """

    kind: AxisStepKind
    axis: str
    size: int
    dim: int = 0
    before: int = 0
    by: int = 0
    reduction: Reduction = ADD

    def result(self, shape: Shape) -> Shape:
        """The shape of the result over an operand of a shape."""
        extents = list(shape)
        match self.kind:
            case "AllGather":
                extents[self.dim] *= self.size
            case "ReduceScatter" | "Part":
                extents[self.dim] //= self.size
            case "AllToAll":
                extents[self.dim] //= self.size
                extents[self.before] *= self.size
        return tuple(extents)

    @property
    def adjoints(self) -> tuple[AxisStep, ...]:
        """What a cotangent goes through, one after the other. Steps that reduce otherwise than by sums have none."""
        assert self.reduction == ADD, "only sums are linear"
        if self.kind == "ReduceScatter":
            return dataclasses.replace(self, kind="AllGather"), dataclasses.replace(self, kind="Vary")
        inverse = dataclasses.replace(self, kind=_INVERSE[self.kind])
        if self.kind == "AllToAll":
            inverse = dataclasses.replace(inverse, dim=self.before, before=self.dim)
        elif self.kind == "Permute":
            inverse = dataclasses.replace(inverse, by=-self.by)
        return (inverse,)

    def __str__(self) -> str:
        return f"{self.kind}[{self.axis}]"
