"""The rewrite of an expression over sharded tensors into what each device computes: a `LocalProgram`.

Leaves lie as they were given. Operators, in order, take the cheapest strategy of their rule: the one for which the
fewest bytes move, of what reaches a device now and of what a pending result will need. Where an operator's body reduces
what is split, and its record spells it in others, these take its place. Then what all readers cut is made in parts to
begin with (`demands.py`), where that moves no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tessera.dtypes import DType
from tessera.errors import MeshError
from tessera.ir.anchors.anchor import ADD, Reduction
from tessera.lazy.layouts import Layout, MeshShape, layout, replicated
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops import OPERATORS
from tessera.ops.collective.records import CONSTRAIN, SHARD_MAP, Wanted
from tessera.ops.counting import flops_of
from tessera.ops.record import Operator
from tessera.sharding.partitioning.bodies import passes_sums
from tessera.sharding.partitioning.demands import COPIES, demands, strategy_for
from tessera.sharding.partitioning.program import Compute, Literal, LocalProgram, Read, ShardedValue, ShardMove
from tessera.sharding.partitioning.redistribution import START_BYTES, Way, way
from tessera.sharding.partitioning.rules import ShardingRule, ShardingStrategy, rule_of, strategy
from tessera.sharding.regions.inlining import Inlining
from tessera.sharding.regions.region import ShardRegion

PASS: Final = ""
"""In place of an axis of the anchor: a pending sum stays pending."""

FLOPS_PER_BYTE: Final = 64
"""Operations in the time in which a byte arrives: 100 GFLOP/s beside 1.6 GB/s. What every device computes for itself
costs so much more than what each does a part of.
"""

MOST_STRATEGIES: Final = 512


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
    mesh = next((o.structure.layout.mesh for o in order if o.structure.layout is not None), None)
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
        self._regions = Inlining(self.program)

    def roots(self, structure: Structure, order: Sequence[Occurrence]) -> list[int]:
        """Makes what is asked for, and gives it by number, as it lies then."""
        leaves = {o.leaf: self._leaf(o) for o in order if o.leaf is not None}
        self.numbers = numbers = self._expression(order, leaves, self._wanted)
        return [numbers[place] for place in order[-1].operands] if structure.kind == "tuple" else [numbers[-1]]

    def ended(self, structure: Structure, roots: Sequence[int]) -> LocalProgram:
        """The program, whose results have no sums pending but those that they are constrained to."""
        ends = structure.operands if structure.kind == "tuple" else (structure,)
        self.program.roots = tuple(self._settled(root, _pending(end)) for root, end in zip(roots, ends, strict=True))
        return self.program

    def _leaf(self, occurrence: Occurrence) -> int:
        structure = occurrence.structure
        assert occurrence.leaf is not None
        laid = structure.layout or replicated(self.program.mesh, len(structure.shape))
        return self.program.add(Read(occurrence.leaf), ShardedValue(structure.shape, structure.dtype, laid))

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
        self, order: Sequence[Occurrence], leaves: Mapping[int, int], wanted: Mapping[int, Layout]
    ) -> list[int]:
        """The values of an expression, by place in its post-order."""
        numbers: list[int] = []
        for at, (structure, operands, leaf) in enumerate(order):
            if leaf is not None:
                numbers.append(leaves[leaf])
            elif structure.kind == "tuple":
                numbers.append(-1)
            elif structure.operator is None:
                laid = replicated(self.program.mesh, 0)
                numbers.append(self.program.add(Literal(structure), ShardedValue((), structure.dtype, laid)))
            else:
                numbers.append(self._operator(structure, tuple(numbers[place] for place in operands), wanted.get(at)))
        return numbers

    def _operator(self, structure: Structure, operands: tuple[int, ...], wanted: Layout | None) -> int:
        assert structure.operator is not None
        operator = OPERATORS[structure.operator.name]
        if operator is CONSTRAIN and structure.attributes[0] is not None:
            return self._constrained(structure, operands[0], wanted)
        if operator is SHARD_MAP and structure.attributes[0] is not None:
            return self._region(structure.attributes[0], structure.attributes[1], operands)
        values = [self.program.values[place] for place in operands]
        rule = rule_of(
            operator,
            structure.attributes,
            tuple(value.shape for value in values),
            tuple(value.dtype for value in values),
            structure.shape,
        )
        chosen, name = self._strategy(structure, operator, rule, values, wanted)
        if operator.spelled is not None and self._reduces_split(chosen, values):
            spelled = self._spelled(operator, structure, operands)
            if spelled is not None:
                return spelled
        moved = [
            self._moved_to(place, wanted, f"{operator.name} reads it so")
            for place, wanted in zip(operands, chosen.operands, strict=True)
        ]
        instruction = Compute(operator, structure.attributes, tuple(moved), name)
        return self.program.add(instruction, ShardedValue(structure.shape, structure.dtype, chosen.result))

    def _constrained(self, structure: Structure, operand: int, cut: Layout | None) -> int:
        wanted: Wanted = structure.attributes[0]
        assert wanted is not None
        if wanted.mesh != self.program.mesh:
            raise MeshError(f"a layout of a mesh of {wanted.mesh} for a tensor on one of {self.program.mesh}")
        if cut is not None:
            return self._moved_to(operand, cut, "all that reads it cuts it so", implicit=False)
        return self._moved_to(operand, wanted, "the program asks for this layout", implicit=False)

    def _region(self, region: ShardRegion, index: int, operands: tuple[int, ...]) -> int:
        if region.mesh != self.program.mesh:
            raise MeshError(f"a function of shards on a mesh of {region.mesh}, on one of {self.program.mesh}")
        moved = [
            place if laid is None else self._moved_to(place, laid, "each device reads its shard", implicit=False)
            for place, laid in zip(operands, region.inputs, strict=True)
        ]
        return self._regions.result(region, index, moved)

    def _reduces_split(self, chosen: ShardingStrategy, values: Sequence[ShardedValue]) -> bool:
        """Whether a dimension would have to be brought together that is split."""
        return any(
            any(set(axes) - set(wanted) for axes, wanted in zip(value.layout.dims, target.dims, strict=True))
            for value, target in zip(values, chosen.operands, strict=True)
        )

    def _spelled(self, operator: Operator, structure: Structure, operands: tuple[int, ...]) -> int | None:
        """The value of an operator in others; None where they are just this one."""
        assert operator.spelled is not None
        nodes: list[Node] = []
        leaves: list[Leaf] = []
        for place in operands:
            value = self.program.values[place]
            laid = layout(value.layout.mesh, value.layout.dims)
            leaves.append(Placeholder(interning.sharded(value.shape, value.dtype, laid)))
            nodes.append(leaf_node(leaves[-1]))
        made = operator.spelled(*nodes, **structure.named_attributes)
        inner, own = made.state
        if inner.operator is structure.operator and inner.attributes == structure.attributes:
            return None
        return self._expression(
            inner.post_order(), {number: operands[leaves.index(leaf)] for number, leaf in enumerate(own)}, {}
        )[-1]

    # -- strategies -----------------------------------------------------------------------------------------------

    def _strategy(
        self,
        structure: Structure,
        operator: Operator,
        rule: ShardingRule | None,
        values: Sequence[ShardedValue],
        wanted: Layout | None,
    ) -> tuple[ShardingStrategy, str]:
        mesh = self.program.mesh
        whole = ShardingStrategy(
            tuple(replicated(mesh, len(value.shape)) for value in values), replicated(mesh, len(structure.shape))
        )
        if rule is None:
            return whole, "whole"
        if all(value.layout.is_replicated for value in values):
            parts = None if wanted is None else strategy_for(rule, wanted)
            return (whole, COPIES) if parts is None else (parts[0], _named(parts[1], {}))
        work = flops_of(operator, structure.operands, structure, structure.named_attributes) / FLOPS_PER_BYTE
        best, price, name = whole, math.inf, COPIES
        for split_by, passed in _choices(structure, operator, rule, values, mesh):
            found = strategy(rule, mesh, split_by, _order(rule, values, split_by), passed)
            if found is None:
                continue
            cost = _cost(found, values, structure) + work / math.prod(map(mesh.size, split_by))
            if cost < price:
                best, price, name = found, cost, _named(split_by, passed)
        return best, name

    # -- moves ----------------------------------------------------------------------------------------------------

    def _moved_to(self, place: int, target: Layout, reason: str, implicit: bool = True) -> int:
        value = self.program.values[place]
        known = self._moved.get((place, target))
        if known is not None or value.layout is target:
            return place if known is None else known
        found = _way(value, target)
        if found is None:
            raise MeshError(f"nothing leads from the layout {value.layout} to {target}")
        at = place
        for step in found.steps:
            moves = implicit and step.kind in ("AllGather", "AllToAll")
            at = self.program.add(
                ShardMove(step, at, reason, moves), ShardedValue(value.shape, value.dtype, step.target)
            )
            self._moved.setdefault((place, step.target), at)
            self.ways.add(at)
        return at


def _pending(structure: Structure) -> tuple[tuple[str, Reduction], ...]:
    """What stays pending of an expression where it is a result: what the layout says that it is constrained to."""
    operator = structure.operator
    laid = structure.attributes[0] if operator is not None and operator.name == CONSTRAIN.name else None
    return laid.pending if isinstance(laid, Layout) else ()


def _way(value: ShardedValue, target: Layout) -> Way | None:
    return way(value.shape, value.dtype.itemsize, value.layout, target)


def _choices(
    structure: Structure, operator: Operator, rule: ShardingRule, values: Sequence[ShardedValue], mesh: MeshShape
) -> Iterator[tuple[dict[str, str], dict[str, frozenset[int]]]]:
    """For each axis of the mesh the axis of the anchor that it may split, or the operands whose sums stay pending along
    it; neither, where every device along it computes the same.
    """
    options: list[list[tuple[str, str, frozenset[int]] | None]] = []
    for axis, size in mesh.axes:
        if size > 1:
            found = _options(structure, operator, rule, values, axis)
            options.append([None, *found])
    for picked in itertools.islice(itertools.product(*reversed(options)), MOST_STRATEGIES):
        present = [each for each in picked if each is not None]
        split_by = {axis: by for axis, by, _ in present if by != PASS}
        yield split_by, {axis: places for axis, by, places in present if by == PASS}


def _options(
    structure: Structure, operator: Operator, rule: ShardingRule, values: Sequence[ShardedValue], axis: str
) -> list[tuple[str, str, frozenset[int]]]:
    splits: dict[str, None] = {}
    pending = frozenset(place for place, value in enumerate(values) if axis in dict(value.layout.pending))
    size = values[0].layout.mesh.size(axis)
    for value, dimensions in zip(values, rule.operands, strict=True):
        targets = [by for by in dimensions if by is not None and by in rule.result and rule.extents[by] >= size]
        for axes, by in zip(value.layout.dims, dimensions, strict=True):
            if axis in axes:
                # What has to be whole may be split along another dimension instead.
                splits |= dict.fromkeys(targets if by is None else [by])
        if axis in dict(value.layout.pending):
            splits |= dict.fromkeys(targets)  # a sum may be scattered along what has a part for each device
    found = [(axis, by, frozenset[int]()) for by in splits]
    sums = all(dict(values[place].layout.pending)[axis] == ADD for place in pending)
    if pending and sums and _stays_pending(structure, operator, values, pending):
        found.append((axis, PASS, pending))
    return found


def _stays_pending(
    structure: Structure, operator: Operator, values: Sequence[ShardedValue], pending: frozenset[int]
) -> bool:
    if operator.movement is not None:
        return len(values) == 1
    dtypes: tuple[DType, ...] = tuple(value.dtype for value in values)
    return passes_sums(operator, structure.attributes, dtypes, pending)


def _order(rule: ShardingRule, values: Sequence[ShardedValue], split_by: Mapping[str, str]) -> list[str]:
    """The axes of the mesh, those that an operand is split by already in its order."""
    found: dict[str, None] = {}
    for value, dimensions in zip(values, rule.operands, strict=True):
        for axes, by in zip(value.layout.dims, dimensions, strict=True):
            if by is not None:
                found |= dict.fromkeys([axis for axis in axes if split_by.get(axis) == by])
    return [*found, *(axis for axis in split_by if axis not in found)]


def _cost(found: ShardingStrategy, values: Sequence[ShardedValue], structure: Structure) -> float:
    """Bytes that move to the operands, and those that a pending result has yet to move."""
    total = 0.0
    for value, target in zip(values, found.operands, strict=True):
        taken = _way(value, target)
        if taken is None:
            return math.inf
        total += taken.cost
        # What is scattered will most often be gathered again.
        total += START_BYTES * sum(step.kind == "ReduceScatter" for step in taken.steps)
    held = math.prod(found.result.largest_shape(structure.shape)) * structure.dtype.itemsize
    mesh = found.result.mesh
    for axis, _ in found.result.pending:
        total += held * (mesh.size(axis) - 1) / mesh.size(axis) + START_BYTES
    # Of two that move as much, the one that leaves less to compute and to keep.
    return total + held * 1e-3


def _named(split_by: Mapping[str, str], passed: Mapping[str, object]) -> str:
    parts = [f"{axis} splits {by}" for axis, by in split_by.items()]
    return ", ".join([*parts, *(f"{axis} stays pending" for axis in passed)]) or COPIES
