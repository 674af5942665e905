"""From one layout of a tensor to another: the cheapest sequence of steps, by the bytes that a device receives.

Steps are collectives along one axis of the mesh, and cuts, which move nothing. Layouts are few (each axis splits one
dimension, none, or is pending), so that Dijkstra's algorithm finds the cheapest way among all; ways are remembered.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from tessera.ir.anchors.anchor import ADD, Reduction
from tessera.lazy.layouts import Layout, Shape, layout

MeshStepKind: TypeAlias = Literal[
    "AllReduce", "ReduceScatter", "AllGather", "AllToAll", "Permute", "Broadcast", "Slice", "Keep"
]
"""What devices along an axis do. Ways between layouts take no permutations, broadcasts and nothing of what only one
device keeps: these are steps of functions that devices apply to their shards.
"""

START_BYTES: Final = 1 << 14
"""What starting a collective costs, in bytes that could have been moved meanwhile: 10 us at 1.6 GB/s, which loopback
has. It decides between few large and many small steps.
"""


@dataclass(frozen=True)
class MeshStep:
    """One step along one axis of the mesh, from a layout to a layout.

    `dim` is the dimension that is gathered, scattered or cut, of an AllToAll the one that is split afterwards, and
    `before` the one that was split; `by` is how many places a permutation shifts, or the place that broadcasts or
    keeps. `nbytes` are those that each device receives.
    """

    kind: MeshStepKind
    axis: str
    source: Layout
    target: Layout
    dim: int = -1
    before: int = -1
    reduction: Reduction = ADD
    nbytes: int = 0
    by: int = 0

    @property
    def is_local(self) -> bool:
        """Whether nothing moves: each device keeps a part of what it has."""
        return self.kind in ("Slice", "Keep")

    def __str__(self) -> str:
        return f"{self.kind}[{self.axis}]"


class Way(NamedTuple):
    """The steps from one layout to another, and what they cost in bytes."""

    steps: tuple[MeshStep, ...]
    cost: float

    @property
    def nbytes(self) -> int:
        """The bytes that each device receives."""
        return sum(step.nbytes for step in self.steps)


@lru_cache(maxsize=1 << 14)
def way(shape: Shape, itemsize: int, source: Layout, target: Layout) -> Way | None:
    """The cheapest way between two layouts of a tensor; None where there is none: nothing makes a pending reduction."""
    if any(pair not in source.pending for pair in target.pending):
        return None
    count = itertools.count()
    queue: list[tuple[float, int, Layout, tuple[MeshStep, ...]]] = [(0.0, 0, source, ())]
    done: set[Layout] = set()
    while queue:
        cost, _, reached, steps = heapq.heappop(queue)
        if reached is target:
            return Way(steps, cost)
        if reached in done:
            continue
        done.add(reached)
        for step in _steps(shape, itemsize, reached, target):
            if step.target not in done:
                heapq.heappush(queue, (cost + _price(step, shape, itemsize), next(count), step.target, (*steps, step)))
    return None


def _price(step: MeshStep, shape: Shape, itemsize: int) -> float:
    """What a step costs: the bytes that arrive, those of memory that a gathered tensor takes, and the start."""
    if step.kind == "Slice":
        return 0.01
    held = math.prod(step.target.largest_shape(shape)) * itemsize if step.kind == "AllGather" else 0
    return step.nbytes + held + START_BYTES


def _steps(shape: Shape, itemsize: int, at: Layout, target: Layout) -> Iterator[MeshStep]:
    """All steps from a layout, but for ones along axes that lie in it as in the target, with nothing to move behind."""
    mesh = at.mesh
    wanted = dict(target.pending)
    dims = list(at.dims)
    split_axes = {axis for axes in dims for axis in axes}

    def held(laid: Layout) -> int:
        return math.prod(laid.largest_shape(shape)) * itemsize

    for axis, reduction in at.pending:
        if axis in wanted:
            continue
        others = tuple(pair for pair in at.pending if pair[0] != axis)
        share = (mesh.size(axis) - 1) * held(at) // mesh.size(axis)
        yield MeshStep("AllReduce", axis, at, layout(mesh, dims, others), reduction=reduction, nbytes=2 * share)
        for dim in _wanting(axis, target):
            after = layout(mesh, _with(dims, dim, (*dims[dim], axis)), others)
            yield MeshStep("ReduceScatter", axis, at, after, dim, reduction=reduction, nbytes=share)
    for dim, axes in enumerate(dims):
        if not axes or target.dims[dim][: len(axes)] == axes:
            continue
        axis, rest = axes[-1], _with(dims, dim, axes[:-1])
        gathered = layout(mesh, rest, at.pending)
        share = (mesh.size(axis) - 1) * held(gathered) // mesh.size(axis)
        yield MeshStep("AllGather", axis, at, gathered, dim, nbytes=share)
        for other in _wanting(axis, target):
            if other != dim:
                moved = layout(mesh, _with(rest, other, (*rest[other], axis)), at.pending)
                share = (mesh.size(axis) - 1) * held(moved) // mesh.size(axis)
                yield MeshStep("AllToAll", axis, at, moved, other, dim, nbytes=share)
    pending = {axis for axis, _ in at.pending}
    for axis, size in mesh.axes:
        if size > 1 and axis not in split_axes and axis not in pending:
            for dim in _wanting(axis, target):
                after = layout(mesh, _with(dims, dim, (*dims[dim], axis)), at.pending)
                yield MeshStep("Slice", axis, at, after, dim)


def _wanting(axis: str, target: Layout) -> list[int]:
    """The dimension that an axis of the mesh is to split, if it is to split one."""
    return [dim for dim, axes in enumerate(target.dims) if axis in axes]


def _with(dims: list[tuple[str, ...]], dim: int, axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [axes if place == dim else each for place, each in enumerate(dims)]
