"""The rewrite of an expression over sharded tensors into what each device computes: a `LocalProgram`.

Leaves lie as they were given. Operators, in order, take the cheapest strategy of their rule: the one for which the
fewest bytes move, of what reaches a device now and of what a pending result will need. Where an operator's body reduces
what is split, and its record spells it in others, these take its place. Then what all readers cut is made in parts to
begin with (`demands.py`), where that moves no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tessera.errors import MeshError
from tessera.ir.anchors.anchor import Reduction
from tessera.lazy.layouts import Layout, MeshShape, layout, replicated
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops import OPERATORS
from tessera.ops.collective.parts import FROM_PARTS, TO_PART, MeshPart
from tessera.ops.collective.records import CONSTRAIN, SHARD_MAP, Wanted
from tessera.ops.record import Operator
from tessera.ops.spectral.turned import (
    TurnedPoints,
    axis_after,
    is_by_points,
    lead_to_transforms,
    transform_of_turned,
    turned_transform,
)
from tessera.sharding.partitioning.choosing import chosen_strategy, way_of
from tessera.sharding.partitioning.demands import demands
from tessera.sharding.partitioning.homes import grid_of, homes_of
from tessera.sharding.partitioning.program import (
    Compute,
    FromParts,
    Home,
    Literal,
    LocalProgram,
    Read,
    Regard,
    ShardedValue,
    ShardMove,
)
from tessera.sharding.partitioning.rules import ShardingStrategy, rule_of
from tessera.sharding.regions.inlining import Inlining
from tessera.sharding.regions.region import ShardRegion

REASON: Final = "parts of the mesh have their own"

_TURNED: Final = -2
"""The first number of a value whose points are turned; -1 is that of none."""


def partition(structure: Structure) -> LocalProgram:
    """The local program of an expression over tensors on one mesh.

    Raises MeshError (E_MESH) for an expression over none.
    """
    order = structure.post_order()
    first = _Partition(_mesh_of(order))
    program = first.ended(structure, first.roots(structure, order))
    wanted = demands(program, first.ways)
    if not wanted:
        return program
    again = _Partition(
        program.mesh, {place: wanted[number] for place, number in enumerate(first.numbers) if number in wanted}
    )
    cut = again.ended(structure, again.roots(structure, order))
    return cut if cut.nbytes <= program.nbytes else program


def layouts_as_made(structure: Structure) -> list[Layout]:
    """How the results of an expression lie before sums over devices that are pending are formed. Raises as `partition`
    does.
    """
    order = structure.post_order()
    made = _Partition(_mesh_of(order))
    return [made.program.values[root].layout for root in made.roots(structure, order)]


def _mesh_of(order: Sequence[Occurrence]) -> MeshShape:
    """The axes of the whole mesh."""
    laid = [(o.structure.layout, home) for o, home in zip(order, homes_of(order), strict=True)]
    mesh = next((layout.mesh for layout, home in laid if layout is not None and home == ()), None)
    if mesh is None:
        raise MeshError("an expression over no tensor of a mesh")
    return mesh


class _Partition:
    """Makes one program. `wanted` has, by place in the expression, layouts that all readers cut a value to."""

    def __init__(self, mesh: MeshShape, wanted: Mapping[int, Layout] | None = None) -> None:
        self.program = LocalProgram(mesh)
        self.numbers: list[int] = []
        """The values of the expression, by place."""
        self.ways: set[int] = set()
        """The moves that lead from one layout to another."""
        self._wanted = wanted or {}
        self._moved: dict[tuple[int, Layout], int] = {}
        self._regions: dict[Home, Inlining] = {}
        self._turned: dict[int, tuple[int, TurnedPoints]] = {}
        """By a number below all others: a value that is there with its points turned alone, and which."""
        self._ordered: dict[int, int] = {}

    def roots(self, structure: Structure, order: Sequence[Occurrence]) -> list[int]:
        """Makes what is asked for, and gives it by number, as it lies then."""
        homes = homes_of(order)
        leaves = {
            o.leaf: self._leaf(o, home)
            for o, home in zip(order, homes, strict=True)
            if o.leaf is not None and home is not None
        }
        self.numbers = numbers = self._expression(order, leaves, self._wanted, homes)
        roots = [numbers[place] for place in order[-1].operands] if structure.kind == "tuple" else [numbers[-1]]
        return [self._in_order(root) for root in roots]

    def ended(self, structure: Structure, roots: Sequence[int]) -> LocalProgram:
        """The program, whose results have no sums pending but those that they are constrained to."""
        ends = structure.operands if structure.kind == "tuple" else (structure,)
        self.program.roots = tuple(self._settled(root, _pending(end)) for root, end in zip(roots, ends, strict=True))
        return self.program

    def _leaf(self, occurrence: Occurrence, home: Home) -> int:
        structure, grid = occurrence.structure, grid_of(self.program.mesh, home)
        assert occurrence.leaf is not None
        laid = structure.layout or replicated(grid, len(structure.shape))
        if laid.mesh != grid:
            raise MeshError(f"tensors of a mesh of {laid.mesh} and of one of {grid}", hints=["evaluate them apart"])
        return self.program.add(Read(occurrence.leaf), ShardedValue(structure.shape, structure.dtype, laid, home))

    def _settled(self, root: int, stay: Collection[tuple[str, Reduction]]) -> int:
        """A result of which nothing is pending but what may `stay` so: what is not read by an operator is reduced, to
        where it is smallest.
        """
        laid = self.program.values[root].layout
        kept = [pair for pair in laid.pending if pair in stay]
        if len(kept) == len(laid.pending):
            return root
        whole = layout(laid.mesh, laid.dims, kept)
        return self._moved_to(root, whole, "a result is whole", implicit=False)

    # -- operators ------------------------------------------------------------------------------------------------

    def _expression(
        self,
        order: Sequence[Occurrence],
        leaves: Mapping[int, int],
        wanted: Mapping[int, Layout],
        homes: Sequence[Home | None],
    ) -> list[int]:
        """The values of an expression, by place in its post-order; -1 for what has none of its own."""
        numbers: list[int] = []
        anywhere: dict[tuple[int, Home], int] = {}
        turns = lead_to_transforms(order)

        def made(at: int, home: Home) -> int:
            structure, operands, leaf = order[at]
            if leaf is not None:
                return leaves[leaf] if leaf in leaves else self._leaf(order[at], home)
            if structure.operator is None:
                laid = replicated(grid_of(self.program.mesh, home), 0)
                return self.program.add(Literal(structure), ShardedValue((), structure.dtype, laid, home))
            below = [there(place, each) for place, each in zip(operands, _homes_below(structure, home), strict=False)]
            if any(place in self._turned for place in below):
                turned = self._of_turned(structure, below, home, turns[at])
                if turned is not None:
                    return turned
                below = [self._in_order(place) for place in below]
            return self._operator(structure, tuple(below), wanted.get(at), home, turns[at])

        def there(at: int, home: Home) -> int:
            """The value on a home; what lies nowhere is made on each that reads it."""
            if homes[at] is not None:
                return numbers[at]
            if (at, home) not in anywhere:
                anywhere[at, home] = made(at, home)
            return anywhere[at, home]

        for at, home in enumerate(homes):
            numbers.append(-1 if home is None or order[at].structure.kind == "tuple" else made(at, home))
        return numbers

    def _operator(
        self, structure: Structure, operands: tuple[int, ...], wanted: Layout | None, home: Home, turns: bool
    ) -> int:
        assert structure.operator is not None
        operator = OPERATORS[structure.operator.name]
        if operator in (CONSTRAIN, SHARD_MAP, TO_PART, FROM_PARTS) and structure.attributes[0] is not None:
            return self._of_mesh(operator, structure, operands, wanted, home)
        values = [self.program.values[place] for place in operands]
        rule = rule_of(
            operator,
            structure.attributes,
            tuple(value.shape for value in values),
            tuple(value.dtype for value in values),
            structure.shape,
        )
        chosen, name = chosen_strategy(structure, rule, values, wanted, grid_of(self.program.mesh, home))
        if operator.spelled is not None and self._reduces_split(chosen, values):
            spelled = self._spelled(operator, structure, operands, home, turns)
            if spelled is not None:
                return spelled
        moved = [
            self._moved_to(place, wanted, f"{operator.name} reads it so")
            for place, wanted in zip(operands, chosen.operands, strict=True)
        ]
        instruction = Compute(operator, structure.attributes, tuple(moved), name)
        return self.program.add(instruction, ShardedValue(structure.shape, structure.dtype, chosen.result, home))

    # -- what says where values lie -------------------------------------------------------------------------------

    def _of_mesh(
        self, operator: Operator, structure: Structure, operands: tuple[int, ...], wanted: Layout | None, home: Home
    ) -> int:
        if operator is CONSTRAIN:
            return self._constrained(structure, operands[0], wanted, home)
        if operator is SHARD_MAP:
            return self._region(structure.attributes[0], structure.attributes[1], operands, home)
        part: MeshPart = structure.attributes[0] if operator is TO_PART else structure.attributes[0][0]
        inner = (part.axis,) if part.size > 1 else ()
        dims = [
            tuple(axis for axis in axes if axis != part.axis) for axes in self.program.values[operands[0]].layout.dims
        ]
        if operator is TO_PART:
            rows, *rest = dims[1:]
            whole = layout(part.whole, [(part.axis,), rows, *rest])
            moved = self._moved_to(operands[0], whole, REASON, implicit=False)
            own = layout(part.grid, [(*inner, *rows), *rest])
            return self.program.add(Regard(moved), ShardedValue(structure.shape, structure.dtype, own, home))
        rows, *rest = dims
        own = layout(part.grid, [(*inner, *rows), *rest])
        each = tuple(self._moved_to(operand, own, REASON, implicit=False) for operand in operands)
        whole = layout(part.whole, [(part.axis,), rows, *rest])
        made = FromParts(each, structure.attributes[0])
        return self.program.add(made, ShardedValue(structure.shape, structure.dtype, whole, home))

    def _constrained(self, structure: Structure, operand: int, cut: Layout | None, home: Home) -> int:
        wanted: Wanted = structure.attributes[0]
        assert wanted is not None
        grid = grid_of(self.program.mesh, home)
        if wanted.mesh != grid:
            raise MeshError(f"a layout of a mesh of {wanted.mesh} for a tensor on one of {grid}")
        if cut is not None:
            return self._moved_to(operand, cut, "all that reads it cuts it so", implicit=False)
        return self._moved_to(operand, wanted, "the program asks for this layout", implicit=False)

    def _region(self, region: ShardRegion, index: int, operands: tuple[int, ...], home: Home) -> int:
        grid = grid_of(self.program.mesh, home)
        if region.mesh != grid:
            raise MeshError(f"a function of shards on a mesh of {region.mesh}, on one of {grid}")
        moved = [
            place if laid is None else self._moved_to(place, laid, "each device reads its shard", implicit=False)
            for place, laid in zip(operands, region.inputs, strict=True)
        ]
        inlining = self._regions.setdefault(home, Inlining(self.program, home))
        return inlining.result(region, index, moved)

    def _reduces_split(self, chosen: ShardingStrategy, values: Sequence[ShardedValue]) -> bool:
        """Whether a dimension would have to be brought together that is split."""
        return any(
            any(set(axes) - set(wanted) for axes, wanted in zip(value.layout.dims, target.dims, strict=True))
            for value, target in zip(values, chosen.operands, strict=True)
        )

    def _spelled(
        self, operator: Operator, structure: Structure, operands: tuple[int, ...], home: Home, turns: bool
    ) -> int | None:
        """The value of an operator in others; None where they are just this one."""
        assert operator.spelled is not None
        nodes = [self._standing_for(place) for place in operands]
        turned = turned_transform(structure, nodes[0]) if turns else None
        if turned is not None:
            return self._as_turned(self._made_of(turned[0], nodes, operands, home), turned[1])
        made = operator.spelled(*nodes, **structure.named_attributes)
        inner = made.structure
        if inner.operator is structure.operator and inner.attributes == structure.attributes:
            return None
        return self._made_of(made, nodes, operands, home)

    def _standing_for(self, place: int) -> Node:
        """What stands for a value in an expression over values."""
        value = self.program.values[place]
        laid = layout(value.layout.mesh, value.layout.dims)
        node: Node = leaf_node(Placeholder(interning.sharded(value.shape, value.dtype, laid)))
        return node

    def _made_of(self, made: Node, nodes: Sequence[Node], places: Sequence[int], home: Home) -> int:
        """The value of an expression over what stands for values."""
        inner, own = made.state
        order = inner.post_order()
        leaves = {node.leaves[0]: place for node, place in zip(nodes, places, strict=True)}
        given = {number: leaves[leaf] for number, leaf in enumerate(own)}
        return self._in_order(self._expression(order, given, {}, [home] * len(order))[-1])

    # -- turned points --------------------------------------------------------------------------------------------

    def _as_turned(self, grid: int, points: TurnedPoints) -> int:
        number = _TURNED - len(self._turned)
        self._turned[number] = grid, points
        return number

    def _in_order(self, number: int) -> int:
        """The value itself, where its points are turned."""
        if number not in self._turned:
            return number
        if number not in self._ordered:
            grid, points = self._turned[number]
            node = self._standing_for(grid)
            home = self.program.values[grid].home
            self._ordered[number] = self._made_of(points.in_order(node), [node], [grid], home)
        return self._ordered[number]

    def _of_turned(self, structure: Structure, operands: Sequence[int], home: Home, turns: bool) -> int | None:
        """The value of an operator over turned points: turned as well, or in order after a transform; None where it
        reads them in order.
        """
        assert structure.operator is not None
        operator = OPERATORS[structure.operator.name]
        at = next(place for place, number in enumerate(operands) if number in self._turned)
        grid, points = self._turned[operands[at]]
        if len(operands) == 1:
            node = self._standing_for(grid)
            made = transform_of_turned(structure, node, points)
            if made is not None:
                return self._made_of(made, [node], [grid], home)
        if not turns or not is_by_points(operator):
            return None
        rank = len(structure.shape)
        axis = axis_after(operator, points.axis, len(structure.operands[at].shape), rank)
        given: list[int] = []
        for number, below in zip(operands, structure.operands, strict=True):
            own, dim = self._turned.get(number), axis - rank + len(below.shape)
            if own is not None and axis_after(operator, own[1].axis, len(below.shape), rank) == axis:
                if (own[1].rows, own[1].columns) != (points.rows, points.columns):
                    return None
                given.append(own[0])
            elif own is None and dim < 0:
                given.append(number)
            elif own is None:
                node = self._standing_for(number)
                given.append(self._made_of(points.of(node, dim), [node], [number], home))
            else:
                return None
        nodes = [self._standing_for(place) for place in given]
        made = apply(operator, structure.attributes, nodes)
        return self._as_turned(self._made_of(made, nodes, given, home), replace(points, axis=axis))

    # -- moves ----------------------------------------------------------------------------------------------------

    def _moved_to(self, place: int, target: Layout, reason: str, implicit: bool = True) -> int:
        value = self.program.values[place]
        known = self._moved.get((place, target))
        if known is not None or value.layout is target:
            return place if known is None else known
        found = way_of(value, target)
        if found is None:
            raise MeshError(f"nothing leads from the layout {value.layout} to {target}")
        at = place
        for step in found.steps:
            moves = implicit and step.kind in ("AllGather", "AllToAll")
            at = self.program.add(ShardMove(step, at, reason, moves), replace(value, layout=step.target))
            self._moved.setdefault((place, step.target), at)
            self.ways.add(at)
        return at


def _homes_below(structure: Structure, home: Home) -> Iterator[Home]:
    """The homes of the operands of an operator whose result lies on a home."""
    parts = (
        structure.attributes[0]
        if structure.operator is not None and structure.operator.name == FROM_PARTS.name
        else None
    )
    yield from ((*home, part) for part in parts or ())
    yield from itertools.repeat(home)


def _pending(structure: Structure) -> tuple[tuple[str, Reduction], ...]:
    """What stays pending of an expression where it is a result: what the layout says that it is constrained to."""
    operator = structure.operator
    laid = structure.attributes[0] if operator is not None and operator.name == CONSTRAIN.name else None
    return laid.pending if isinstance(laid, Layout) else ()
