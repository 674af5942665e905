"""On which part of a mesh each value of an expression lies, where functions are pinned to parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tessera.errors import MeshError
from tessera.lazy.layouts import MeshShape
from tessera.lazy.structures.structure import Occurrence
from tessera.ops.collective.parts import FROM_PARTS, TO_PART, MeshPart
from tessera.sharding.partitioning.program import Home

Edge: TypeAlias = tuple[int, int, MeshPart]
"""A value, another, and the part of the first one's home that is the second one's."""


_ALONE: Final = "a function pinned to a part of a mesh reads its rows, and tensors of that part alone"


def grid_of(whole: MeshShape, home: Home) -> MeshShape:
    """The axes of a home on a mesh."""
    return home[-1].grid if home else whole


def homes_of(order: Sequence[Occurrence]) -> list[Home | None]:
    """The home of each value of an expression, by place; None for what depends on no tensor, and goes with any.

    Values that meet in an operator have one home, and operators between a mesh and its parts say how homes are related.
    Raises MeshError (E_MESH) for a tensor of one part that another one reads.
    """
    names = [occurrence.structure.operator.name if occurrence.structure.operator else "" for occurrence in order]
    if TO_PART.name not in names and FROM_PARTS.name not in names:
        return [()] * len(order)
    edges: list[Edge] = []
    roots = list(range(len(order)))

    def root(place: int) -> int:
        while roots[place] != place:
            roots[place] = place = roots[roots[place]]
        return place

    lies: list[bool] = []
    for at, (structure, operands, _) in enumerate(order):
        lies.append(structure.kind == "buffer" or any(lies[place] for place in operands))
        if names[at] == TO_PART.name and structure.attributes[0] is not None:
            edges.append((operands[0], at, structure.attributes[0]))
        elif names[at] == FROM_PARTS.name and structure.attributes[0] is not None:
            edges += [(at, place, part) for place, part in zip(operands, structure.attributes[0], strict=True)]
        elif structure.kind != "tuple":
            for place in operands:
                if lies[place]:
                    roots[root(at)] = root(place)
    edges = [edge for edge in edges if lies[edge[0]] and lies[edge[1]]]
    wholes: dict[tuple[int, MeshPart], int] = {}
    joined = True
    while joined:  # what the same values are a part of is one; that may make others the same
        joined = False
        for first, second, part in edges:
            same = root(wholes.setdefault((root(second), part), first))
            if root(first) != same:
                roots[root(first)], joined = same, True
    found = _resolved([(root(first), root(second), part) for first, second, part in edges])
    homes = [found.get(root(at), ()) if lies[at] else None for at in range(len(order))]
    if order[-1].structure.kind == "tuple":
        homes[-1] = None
    return homes


def _resolved(edges: Sequence[Edge]) -> dict[int, Home]:
    """The homes of components: those that are no part of another lie on the whole mesh."""
    within = {second for _, second, _ in edges}
    found: dict[int, Home] = {first: () for first, _, _ in edges if first not in within}
    waiting = list(edges)
    while waiting:
        reached = set(found)
        ready = [edge for edge in waiting if edge[0] in reached]
        if not ready:
            raise MeshError("a tensor that lies on a mesh and on a part of it", hints=[_ALONE])
        for first, second, part in ready:
            home = (*found[first], part)
            if found.setdefault(second, home) != home:
                raise MeshError(
                    f"a tensor that lies on {_text(found[second])} of the mesh and on {_text(home)}",
                    hints=[_ALONE],
                )
        waiting = [edge for edge in waiting if edge[0] not in reached]
    return found


def _text(home: Home) -> str:
    return ", ".join(map(str, home)) or "the whole"
