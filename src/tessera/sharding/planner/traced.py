"""Layouts of a traced step: the operators of a structure by the axes of their anchors, and the meshes they fit best.

Everything that a step computes is in its structure, gradients too, so that nothing is mirrored here: results that are
sums over a mesh axis are combined where they are read, or where they leave the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.errors import ArgumentError, MemoryLimitError
from tessera.ir.anchors.anchor import Anchor, AnchorError
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops.counting import flops_of
from tessera.ops.record import Operator
from tessera.sharding.planner.applied import AppliedStep, mesh_of, spec_of
from tessera.sharding.planner.layouts import BlockLayout, BlockOperator, SplitAxis, choose_layouts
from tessera.sharding.planner.rates import DeviceRates
from tessera.sharding.tensors.specs import ShardSpec

_SPLIT = ("add", "max", "min")
"""Reductions whose parts can be combined after each device reduced its own."""


class TracedStep(NamedTuple):
    """A step as operators of factors: the operator of each leaf by its number, and those of the results in order."""

    operators: tuple[BlockOperator, ...]
    extents: dict[str, int]
    leaves: dict[int, int]
    results: tuple[int, ...]


@dataclass(frozen=True)
class StepRow:
    """A mesh for a traced step: seconds of the step, bytes of arguments and results on a device, and layouts: of
    arguments ("unused" where nothing reads one), of results, and of all operators. `specs` are those of arguments and
    of results as a user writes them.
    """

    axes: Mapping[str, int]
    seconds: float
    memory: float
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    layouts: tuple[BlockLayout, ...]
    specs: tuple[tuple[ShardSpec, ...], tuple[ShardSpec, ...]]


@dataclass(frozen=True)
class StepPlan:
    """The meshes for a traced step, the fastest first; every number is predicted."""

    rates: DeviceRates
    devices: int
    operators: int
    rows: tuple[StepRow, ...]
    step: Callable[..., object] = field(compare=False, repr=False)

    @property
    def best(self) -> StepRow:
        """The fastest mesh."""
        return self.rows[0]

    def apply(self, *, backend: str = "auto") -> AppliedStep:
        """The step on the fastest mesh, with the layouts of the plan: a function of the same arguments. On fewer ranks
        than devices the mesh is abstract; `backend="emulated"` has all of them in this process.
        """
        mesh = mesh_of({"dp": self.best.axes["dp"], "tp": self.best.axes["tp"]}, self.rates.topology.name, backend)
        return AppliedStep(mesh, *self.best.specs, self.step)

    def __str__(self) -> str:
        """The table, and the layouts of arguments and results on the fastest mesh."""
        system, efficiency = self.rates.topology, self.rates.efficiency
        lines = [
            f"plan of a step of {self.operators} operators on {self.devices} of {system.name}: all of it is predicted",
            f"constants: {efficiency.source}; no traced step was compared with a measurement, and operators count",
            "one by one, as if none were fused",
            "",
            "mesh              us/step  MiB a device",
        ]
        for row in self.rows:
            name = " x ".join(f"{axis} {size}" for axis, size in row.axes.items() if size > 1) or "one device"
            lines.append(f"{name:<14} {1e6 * row.seconds:>10.4g}  {row.memory / 2**20:>12.4g}")
        lines.append("")
        for what, layouts in (("argument", self.best.arguments), ("result", self.best.results)):
            lines += [f"- {what} {number}: {layout}" for number, layout in enumerate(layouts)]
        return "\n".join(lines)


def plan_step(
    structure: Structure,
    arguments: Sequence[int | None],
    devices: int,
    rates: DeviceRates,
    fixed: Mapping[str, object],
    memory: float,
    function: Callable[..., object],
) -> StepPlan:
    """The meshes of axes "tp" (near) and "dp" (far) for the structure of a function, each with its best layouts.

    `arguments` are the numbers of the leaves to tell of, in that order, None for one that is not read. `fixed` may hold
    sizes of the two. Raises ArgumentError for others, and where they do not make `devices`; MemoryLimitError where
    leaves and results fit in no way.
    """
    if unknown := sorted(set(fixed) - {"tp", "dp"}):
        raise ArgumentError(f"fixed: {unknown[0]!r} is no axis of a traced step's plan", hints=["there are tp and dp"])
    step = traced(structure)
    rows = []
    for near in range(1, devices + 1):
        far = devices // near
        if devices % near == 0 and fixed.get("tp", near) == near and fixed.get("dp", far) == far:
            rows.append(_row(step, arguments, {"tp": near, "dp": far}, rates))
    if not rows:
        raise ArgumentError(f"{dict(fixed)} is no mesh of {devices} devices")
    fitting = sorted((row for row in rows if row.memory <= memory), key=lambda row: row.seconds)
    if not fitting:
        least = min(row.memory for row in rows)
        raise MemoryLimitError(
            f"the step's arguments and results fit on no mesh of {devices} devices: {least / 2**30:.1f} GiB a device "
            f"are needed at least, {memory / 2**30:.1f} are there"
        )
    return StepPlan(rates, devices, len(step.operators), tuple(fitting), function)


def _row(step: TracedStep, arguments: Sequence[int | None], axes: Mapping[str, int], rates: DeviceRates) -> StepRow:
    mesh = [SplitAxis("tp", axes["tp"], 1), SplitAxis("dp", axes["dp"], axes["tp"])]
    mesh = [axis for axis in mesh if axis.size > 1]
    found = choose_layouts(step.operators, step.extents, mesh, rates, training=False)
    memory = 0.0
    for number in {*step.leaves.values(), *step.results}:
        operator, split = step.operators[number], found.layouts[number].split
        parts = math.prod(axes[axis] for axis, factor in split.items() if factor in operator.result)
        memory += operator.itemsize * math.prod(step.extents[factor] for factor in operator.result) / parts

    def layout(number: int) -> str:
        return found.layouts[number].of(step.operators[number].result, pending=True) or "one number"

    def spec(number: int) -> ShardSpec:
        return spec_of(found.layouts[number].axes(step.operators[number].result))

    read = tuple("unused" if leaf is None else layout(step.leaves[leaf]) for leaf in arguments)
    results = tuple(map(layout, step.results))
    specs = tuple([ShardSpec() if leaf is None else spec(step.leaves[leaf]) for leaf in arguments])
    return StepRow(
        dict(axes), found.seconds, memory, read, results, found.layouts, (specs, tuple(map(spec, step.results)))
    )


def traced(structure: Structure) -> TracedStep:
    """The operators of a structure; leaves are operators without operands, so that each has one layout."""
    order = structure.post_order()
    operators: list[BlockOperator] = []
    extents: dict[str, int] = {}
    numbers: dict[int, int] = {}
    leaves: dict[int, int] = {}
    for place, occurrence in enumerate(order):
        one = occurrence.structure
        if one.kind == "buffer":
            assert occurrence.leaf is not None  # a buffer is one
            leaves[occurrence.leaf] = len(operators)
            operators.append(_leaf(f"leaf {occurrence.leaf}", one, place, extents))
        elif one.kind == "node":
            operators.append(_node(order, place, extents, numbers))
        else:
            continue
        numbers[place] = len(operators) - 1
    last = order[-1]
    roots = last.operands if last.structure.kind == "tuple" else (len(order) - 1,)
    results = []
    for place in roots:
        if place not in numbers:  # a number that is a result
            numbers[place] = len(operators)
            operators.append(_leaf("number", order[place].structure, place, extents))
        # A result of its own, which nothing reads, so that sums are combined before they leave the step.
        made = operators[numbers[place]]
        results.append(len(operators))
        operators.append(
            BlockOperator(
                "result", (made.result,), made.result, (numbers[place],), (False,), 0.0, itemsize=made.itemsize
            )
        )
    return TracedStep(tuple(operators), extents, leaves, tuple(results))


def _leaf(name: str, structure: Structure, place: int, extents: dict[str, int]) -> BlockOperator:
    factors = tuple(f"{place}.{dimension}" for dimension in range(len(structure.shape)))
    extents.update(zip(factors, structure.shape, strict=True))
    return BlockOperator(name, (), factors, (), (), 0.0, itemsize=float(structure.dtype.itemsize))


def _node(
    order: Sequence[Occurrence], place: int, extents: dict[str, int], numbers: Mapping[int, int]
) -> BlockOperator:
    occurrence = order[place]
    one, record = occurrence.structure, occurrence.structure.operator
    assert isinstance(record, Operator)
    below = [order[operand] for operand in occurrence.operands]
    shapes = [each.structure.shape for each in below]
    anchor = _anchor(record, one, shapes)
    known = anchor.extents(shapes) if anchor is not None else {}
    whole = {f"{place}.{axis}" for axis, how in (anchor.reduced.items() if anchor else ()) if how not in _SPLIT}
    tensors = []
    for number, shape in enumerate((*shapes, one.shape)):
        indices = None if anchor is None else (*anchor.operands, anchor.result)[number]
        factors = []
        for dimension, extent in enumerate(shape):
            index = indices[dimension] if indices is not None else None
            axis = index.axes[0] if index is not None and index.is_whole and len(index.axes) == 1 else None
            if axis is not None and known.get(axis) == extent:
                factors.append(f"{place}.{axis}")
            else:
                # Windows, joined dimensions and repeated elements: the dimension is not split, nor are its axes.
                factors.append(f"{place}:{number}.{dimension}")
                whole.add(factors[-1])
                if index is not None and axis is None:
                    whole |= {f"{place}.{each}" for each in index.axes}
            extents[factors[-1]] = extent
        tensors.append(tuple(factors))
    operands, kinds = tensors[:-1], one.named_attributes
    read = [(dims, numbers.get(operand)) for dims, operand in zip(operands, occurrence.operands, strict=True)]
    flops = float(flops_of(record, [each.structure for each in below], one, kinds))
    return BlockOperator(
        record.name,
        tuple(dims for dims, _ in read),
        tensors[-1],
        tuple(source for _, source in read),
        (False,) * len(read),
        flops,
        frozenset(whole),
        float(one.dtype.itemsize),
    )


def _anchor(record: Operator, one: Structure, shapes: Sequence[tuple[int, ...]]) -> Anchor | None:
    """The anchor of a node; None where no map says what it computes, or the map is of other tensors."""
    try:
        anchor = record.anchored(tuple(map(len, shapes)), one.named_attributes)
    except AnchorError:
        return None
    if anchor is None or len(anchor.operands) != len(shapes) or len(anchor.result) != len(one.shape):
        return None
    return anchor
