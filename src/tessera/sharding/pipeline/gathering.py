"""Which weights of a stage all its programs bring together first: these are gathered once a step, and not by each
program of each microbatch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import TypeAlias

from tessera.lazy.devices import is_mesh
from tessera.lazy.layouts import Layout, layout
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node, joined
from tessera.sharding.partitioning.partition import partition
from tessera.sharding.partitioning.program import Compute, LocalProgram, Read, ShardMove, operands_of

Axes: TypeAlias = frozenset[str]


def gathered_layouts(nodes: Sequence[Node], weights: Collection[Leaf]) -> dict[Leaf, Layout]:
    """By weight, how it lies once it is brought together along the axes along which everything in some expressions that
    reads it, also as a view, brings it together.
    """
    on_mesh = [node for node in nodes if is_mesh(node.structure.device)]
    if not on_mesh:
        return {}
    structure, leaves = joined(on_mesh)
    program = partition(structure)
    readers = _readers(program)
    found: dict[Leaf, Layout] = {}
    for number, instruction in enumerate(program.instructions):
        if not isinstance(instruction, Read) or leaves[instruction.leaf] not in weights:
            continue
        axes, laid = _gathered(program, number, readers), program.values[number].layout
        if axes:
            dims = [tuple(axis for axis in each if axis not in axes) for each in laid.dims]
            found[leaves[instruction.leaf]] = layout(laid.mesh, dims)
    return found


def _readers(program: LocalProgram) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in program.instructions]
    for number, instruction in enumerate(program.instructions):
        for operand in operands_of(instruction):
            found[operand].append(number)
    return found


def _gathered(program: LocalProgram, number: int, readers: Sequence[Sequence[int]]) -> Axes:
    """The axes along which all that reads a value brings it together."""
    if number in program.roots or not readers[number]:
        return frozenset()
    return reduce(Axes.intersection, [_gathered_by(program, reader, readers) for reader in readers[number]])


def _gathered_by(program: LocalProgram, reader: int, readers: Sequence[Sequence[int]]) -> Axes:
    instruction = program.instructions[reader]
    if isinstance(instruction, ShardMove) and instruction.step.kind == "AllGather":
        return _gathered(program, reader, readers) | {instruction.step.axis}
    is_view = isinstance(instruction, Compute) and instruction.operator.movement is not None
    return _gathered(program, reader, readers) if is_view and len(operands_of(instruction)) == 1 else frozenset()
