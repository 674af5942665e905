"""The strategy by which an operator is computed: of those that its rule permits the one for which the fewest bytes
move, of what reaches a device now and of what a pending result will need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tessera.dtypes import DType
from tessera.ir.anchors.anchor import ADD
from tessera.lazy.layouts import Layout, MeshShape, replicated
from tessera.lazy.structures.structure import Structure
from tessera.ops.counting import flops_of
from tessera.ops.record import OPERATORS, Operator
from tessera.sharding.partitioning.bodies import passes_sums
from tessera.sharding.partitioning.demands import COPIES, strategy_for
from tessera.sharding.partitioning.program import ShardedValue
from tessera.sharding.partitioning.redistribution import START_BYTES, Way, way
from tessera.sharding.partitioning.rules import ShardingRule, ShardingStrategy, strategy

PASS: Final = ""
"""In place of an axis of the anchor: a pending sum stays pending."""

FLOPS_PER_BYTE: Final = 64
"""Operations in the time in which a byte arrives: 100 GFLOP/s beside 1.6 GB/s. What every device computes for itself
costs so much more than what each does a part of.
"""

MOST_STRATEGIES: Final = 512


def chosen_strategy(
    structure: Structure,
    rule: ShardingRule | None,
    values: Sequence[ShardedValue],
    wanted: Layout | None,
    mesh: MeshShape,
) -> tuple[ShardingStrategy, str]:
    """The cheapest strategy of an operator over values on a mesh, and its name. `wanted` is the layout that all readers
    cut a result to.
    """
    assert structure.operator is not None
    operator = OPERATORS[structure.operator.name]
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


def way_of(value: ShardedValue, target: Layout) -> Way | None:
    """The cheapest way of a value to a layout; None where there is none."""
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
        taken = way_of(value, target)
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
