"""Regions in local programs: their operators and steps, as instructions over what each device has.

Values inside have the shape of what a device has, and lie as copies do, whatever they are: no strategy is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tessera.ir.anchors.anchor import ADD
from tessera.lazy.layouts import Layout, MeshShape, Shape, layout, replicated
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops.collective.records import ACROSS
from tessera.ops.collective.steps import AxisStep
from tessera.ops.record import OPERATORS
from tessera.sharding.partitioning.program import Compute, Home, Literal, LocalProgram, Regard, ShardedValue, ShardMove
from tessera.sharding.partitioning.redistribution import MeshStep
from tessera.sharding.regions.region import ShardRegion

RULE: Final = "each device for itself"
REASON: Final = "the program takes this step"


class Inlining:
    """Writes regions into one program; what two of them compute of the same values is computed once."""

    def __init__(self, program: LocalProgram, home: Home) -> None:
        self._program, self._home = program, home
        self._mesh = home[-1].grid if home else program.mesh
        self._known: dict[tuple[Any, ...], int] = {}

    def result(self, region: ShardRegion, index: int, operands: Sequence[int]) -> int:
        """The value of a result, where the values of operands lie as the region wants them."""
        order = region.body.post_order()
        root, pending = _unreduced(order, order[-1].operands[index])
        numbers: dict[int, int] = {}
        for place in _needed(order, root):
            structure, below, leaf = order[place]
            if leaf is None:
                numbers[place] = self._value(structure, [numbers[n] for n in below])
            else:
                numbers[place] = self._own(structure, operands[leaf]) if structure.shape else operands[leaf]
        laid = region.outputs[index]
        laid = layout(laid.mesh, laid.dims, [(axis, ADD) for axis in pending])
        value = ShardedValue(*region.result(index), laid, self._home)
        return self._once(("result", laid, value.shape, numbers[root]), Regard(numbers[root]), value)

    def _value(self, structure: Structure, operands: list[int]) -> int:
        mesh = self._mesh
        laid = replicated(mesh, len(structure.shape))
        value = ShardedValue(structure.shape, structure.dtype, laid, self._home)
        if structure.operator is None:
            return self._once((structure,), Literal(structure), value)
        operator = OPERATORS[structure.operator.name]
        step = structure.attributes[0] if operator is ACROSS else None
        if step is None:
            made = Compute(operator, structure.attributes, tuple(operands), RULE)
            return self._once((operator, structure.attributes, *operands), made, value)
        if step.kind == "Vary":
            return operands[0]
        shape, move = mesh_step(step, structure.operands[0].shape, structure.dtype.itemsize, mesh)
        instruction = ShardMove(move, operands[0], REASON, implicit=False)
        moved = self._once(
            (step, *operands), instruction, ShardedValue(shape, structure.dtype, move.target, self._home)
        )
        return self._own(structure, moved)

    def _own(self, structure: Structure, number: int) -> int:
        """What a device has of a value, as a value of its own."""
        laid = replicated(self._mesh, len(structure.shape))
        value = ShardedValue(structure.shape, structure.dtype, laid, self._home)
        return number if self._program.values[number] == value else self._once(("own", number), Regard(number), value)

    def _once(self, key: tuple[Any, ...], instruction: Any, value: ShardedValue) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._program.add(instruction, value)
        return number


def mesh_step(step: AxisStep, own: Shape, itemsize: int, mesh: MeshShape) -> tuple[Shape, MeshStep]:
    """A step over what each device has, as one between layouts of what the devices along its axis have together; and
    the shape of that.
    """
    copies = replicated(mesh, len(own))
    held = math.prod(own) * itemsize
    share = held * (step.size - 1) // step.size

    def parted(dim: int) -> Layout:
        return layout(mesh, [(step.axis,) if each == dim else () for each in range(len(own))])

    def along(dim: int) -> Shape:
        return tuple(extent * step.size if each == dim else extent for each, extent in enumerate(own))

    sums = layout(mesh, copies.dims, [(step.axis, step.reduction)])
    axis, dim, before, by = step.axis, step.dim, step.before, step.by
    match step.kind:
        case "AllReduce":
            return own, MeshStep("AllReduce", axis, sums, copies, reduction=step.reduction, nbytes=2 * share)
        case "ReduceScatter":
            moved = MeshStep("ReduceScatter", axis, sums, parted(dim), dim, reduction=step.reduction, nbytes=share)
            return own, moved
        case "AllGather":
            return along(dim), MeshStep("AllGather", axis, parted(dim), copies, dim, nbytes=held * (step.size - 1))
        case "AllToAll":
            return along(before), MeshStep("AllToAll", axis, parted(before), parted(dim), dim, before, nbytes=share)
        case "Part":
            return own, MeshStep("Slice", axis, copies, parted(dim), dim)
        case "Keep":
            return own, MeshStep("Keep", axis, copies, copies, by=by)
        case "Permute":
            return own, MeshStep("Permute", axis, copies, copies, by=by, nbytes=held)
        case "Broadcast":
            return own, MeshStep("Broadcast", axis, copies, copies, by=by, nbytes=held)
    raise AssertionError(f"{step} moves nothing")


def _unreduced(order: Sequence[Occurrence], root: int) -> tuple[int, list[str]]:
    """The value that sums over devices are formed of last, and the axes along which: these stay pending, so that what
    reads the result decides where they are formed.
    """
    read = {place for occurrence in order for place in occurrence.operands}
    pending: list[str] = []
    while True:
        structure, operands, _ = order[root]
        step = structure.attributes[0] if structure.operator is ACROSS else None
        uses = sum(occurrence.operands.count(root) for occurrence in order)
        if step is None or step.kind != "AllReduce" or step.reduction != ADD or uses > 1:
            assert root in read, "results are what the body gives"
            return root, pending
        pending.append(step.axis)
        root = operands[0]


def _needed(order: Sequence[Occurrence], root: int) -> list[int]:
    """The places of what a value is made of, and its own, in order."""
    wanted = {root}
    for place in range(root, -1, -1):
        if place in wanted:
            wanted |= set(order[place].operands)
    return sorted(wanted)
