"""Functions that every device applies to its shards: run once, on leaves that stand for what a device has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import torch

from tessera.dtypes import int64
from tessera.errors import MeshError
from tessera.lazy.layouts import Layout, layout
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures.building import apply
from tessera.ops.collective.records import ACROSS, SHARD_MAP
from tessera.ops.collective.steps import AxisStep
from tessera.sharding.regions.region import own_part, region_of
from tessera.sharding.regions.varying import varying
from tessera.sharding.tensors import making
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.properties import layout_of, mesh_of

Stepping: TypeAlias = Callable[[int], AxisStep]
"""(number of devices along the axis) -> what they do."""


class RegionTrace:
    """A function of shards while it is run: its mesh, what was offered to it, and what stands for that."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.offered: list[Leaf] = []
        self.nodes: list[Node] = []
        self.layouts: list[Layout | None] = []
        self._numbers: dict[str, Node] = {}

    def offer(self, node: Node, laid: Layout) -> Any:
        """What stands for a device's shard of a tensor."""
        structure = node.structure
        leaf = own_part(structure.shape, structure.dtype, laid)
        self._append(leaf, node, laid)
        return leaf_node(leaf)

    def offer_number(self, leaf: Leaf) -> None:
        """A number is the same to every device."""
        self._append(leaf, leaf_node(leaf), None)

    def _append(self, leaf: Leaf, node: Node, laid: Layout | None) -> None:
        self.offered.append(leaf)
        self.nodes.append(node)
        self.layouts.append(laid)

    def number(self, axis: str) -> Node:
        """The place of each device along an axis, one int64 element."""
        known = self._numbers.get(axis)
        if known is None:
            laid = layout(self.mesh.grid, [(axis,)])
            whole = torch.arange(self.mesh.shape[axis], device="cpu")
            known = self.offer(leaf_node(making.of_whole(whole, int64, self.mesh, laid)), laid)
            self._numbers[axis] = known
        return known


_trace: Final[ContextVar[RegionTrace | None]] = ContextVar("the function of shards that is run", default=None)


def trace_here(what: str) -> RegionTrace:
    """The function of shards that runs here. Raises MeshError (E_MESH) where none does."""
    trace = _trace.get()
    if trace is None:
        raise MeshError(f"{what} outside of a function of shards", hints=["dist.shard_map runs one"])
    return trace


@contextmanager
def _tracing(mesh: Mesh) -> Iterator[RegionTrace]:
    if _trace.get() is not None:
        raise MeshError(
            "shard_map inside a function of shards", hints=["a function of shards may call another as it is"]
        )
    trace = RegionTrace(mesh)
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def mapped(
    function: Callable[..., Sequence[Node]],
    mesh: Mesh,
    arguments: Sequence[object],
    inputs: Sequence[Layout | None],
    outputs: Callable[[Sequence[Node]], Sequence[Layout]],
) -> list[Any]:
    """The results of a function of shards, as tensors of the mesh. `inputs` has the layouts of those arguments that are
    nodes; others are handed over as they are. `outputs` gives the layouts of results.

    Raises MeshError (E_MESH) for shards of several shapes, results that vary where their layout has copies, and
    functions that read tensors which are no arguments.
    """
    with _tracing(mesh) as trace:
        own: list[Any] = [
            argument if laid is None else trace.offer(_on(mesh, argument), laid)
            for argument, laid in zip(arguments, inputs, strict=True)
        ]
        results = function(*own)
    for leaf in joined(results)[1] if results else ():
        _check_leaf(trace, leaf)
    if not results:
        raise MeshError("a function of shards that gives nothing")
    made = region_of(varying(results, mesh.grid), outputs(results), trace.offered, trace.layouts)
    operands = [trace.nodes[place] for place in made.reads]
    return [apply(SHARD_MAP, (made.region, index), operands) for index in range(len(results))]


def _on(mesh: Mesh, argument: object) -> Node:
    assert isinstance(argument, Node)
    if mesh_of(argument) != mesh:
        raise MeshError(f"a tensor on {mesh_of(argument)} for a function of shards on {mesh}")
    return argument


def _check_leaf(trace: RegionTrace, leaf: Leaf) -> None:
    """Takes a number that the function reads, and refuses any tensor that is no argument."""
    if leaf in trace.offered:
        return
    if leaf.structure.kind != "scalar":
        raise MeshError(
            f"a function of shards reads a tensor of shape {leaf.shape} on {leaf.device} that is no argument",
            hints=["pass it as an argument, with a layout in in_specs"],
        )
    trace.offer_number(leaf)


def stepped(node: Node, axis: str | None, step_of: Stepping, after: Callable[[Layout], Layout]) -> Any:
    """What devices along an axis do with what each has: inside a function of shards a value of it; else with the shards
    of a tensor of a mesh, which lies as `after` says of its layout.

    Raises MeshError (E_MESH) for a tensor on no mesh, and for an axis that its mesh does not have.
    """
    trace = _trace.get()
    mesh = mesh_of(node) if trace is None else trace.mesh
    size = _size(mesh, axis)
    if size == 1:
        return node
    step = step_of(size)
    if trace is not None:
        return _apply(node, step)
    laid = layout_of(node)
    if step.kind in ("Permute", "Broadcast") and not any(axis in axes for axes in laid.dims):
        return node  # all have the same
    (made,) = mapped(lambda own: [_apply(own, step)], mesh, [node], [laid], lambda results: [after(laid)])
    return made


def axis_size(node: Node, axis: str | None) -> int:
    """How many devices there are along the axis that a step of `stepped` is taken along."""
    trace = _trace.get()
    return _size(mesh_of(node) if trace is None else trace.mesh, axis)


def _size(mesh: Mesh, axis: str | None) -> int:
    if axis is None or axis not in mesh.shape:
        raise MeshError(f"axis={axis!r} on {mesh}", hints=[f"axis= is one of {', '.join(mesh.axes)}"])
    return mesh.shape[axis]


def is_stepped(node: Node) -> bool:
    """Whether steps along axes are taken here: in a function of shards, and with tensors of a mesh."""
    return _trace.get() is not None or any(leaf.structure.layout is not None for leaf in node.leaves)


def _apply(node: Node, step: AxisStep) -> Any:
    shape = node.structure.shape
    if step.kind in ("ReduceScatter", "AllToAll") and shape[step.dim] % step.size:
        raise MeshError(
            f"{step}: {step.size} devices do not divide dimension {step.dim} of what each has, of shape {shape}",
            hints=["x.reshard(layout) takes any extents"],
        )
    return apply(ACROSS, (step,), (node,))
