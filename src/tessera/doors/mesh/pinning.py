"""Functions pinned to parts of a mesh: each is computed there alone, with tensors that lie there alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.errors import ArgumentError, MeshError
from tessera.handle import Tensor
from tessera.ops.collective.parts import MeshPart
from tessera.sharding.tensors.mesh import Mesh

_SAME: Final = "equal parts in order, each of as many functions: mesh['ep', 0:2] of the first two, mesh['ep', 2:4] next"


@dataclass(frozen=True)
class Pinned:
    """A function of tensors that the devices of one part of a mesh compute."""

    function: Callable[[Tensor], Tensor]
    mesh: Mesh

    def __call__(self, x: Tensor) -> Tensor:
        """What the function gives, wherever the tensor lies."""
        return self.function(x)


def pin(function: Callable[[Tensor], Tensor], mesh: Mesh) -> Pinned:
    """The function, to be computed on `mesh` alone, a part of the mesh of what it is handed: `mesh["ep", 0:4]`.

    `op.moe` takes such functions as experts. What they read besides their rows lies on that part, and other devices
    hold nothing of it. On a single device it is the function.

    Raises ArgumentError (E_ARGUMENT) for what cannot be called.
    """
    if not callable(function):
        raise ArgumentError(f"a {type(function).__name__}, pinned", hints=['dist.pin(expert, mesh["ep", 0:4])'])
    return Pinned(function, mesh)


def parts_of(functions: Sequence[Callable[[Tensor], Tensor]], mesh: Mesh, axis: str) -> list[MeshPart] | None:
    """The parts of a mesh along an axis to which functions are pinned, as many functions to each; None where none is
    pinned.

    Raises MeshError (E_MESH) where some are pinned and some are not, and for parts that are not the runs of equal
    length into which the axis falls, in order.
    """
    pinned = [each.mesh for each in functions if isinstance(each, Pinned)]
    if not pinned:
        return None
    meshes = list(dict.fromkeys(pinned))
    count, size = len(meshes), mesh.shape[axis]
    own = len(functions) // count
    in_order = [each for each in meshes for _ in range(own)]
    if len(pinned) != len(functions) or pinned != in_order or size % count:
        shown = ", ".join(repr(list(each.devices)) for each in pinned)
        raise MeshError(f"{len(functions)} functions, of which {len(pinned)} are pinned, to {shown}", hints=[_SAME])
    found = []
    for index, each in enumerate(meshes):
        ways = [MeshPart(mesh.grid, axis, index, count, keeps_axis) for keeps_axis in (True, False)]
        fits = [way for way in ways if (way.size == 1 or way.keeps_axis) and mesh[axis, way.key] == each]
        if not fits:
            raise MeshError(f"part {index} of {count} of {mesh} along {axis!r} is not {each}", hints=[_SAME])
        found.append(fits[0])
    return found
