"""A region: what every device of a mesh computes of its shards, as one expression over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tessera.dtypes import DType
from tessera.errors import MeshError
from tessera.lazy.layouts import Layout, MeshShape, Shape
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure, contiguous_strides
from tessera.ops.collective.records import SHARD_MAP
from tessera.ops.reverse import by_leaves, nodes_of
from tessera.sharding.regions.varying import Varying, own_value, varied, varying


@dataclass(frozen=True)
class ShardRegion:
    """`body` is a tuple of results over leaves, of which each stands for what a device has of an operand. `inputs` has
    the layouts of operands, None of a number, `outputs` those of results; every extent that they split is divided by
    the devices, so that all devices compute the same expression.
    """

    body: Structure
    mesh: MeshShape
    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]

    def result(self, index: int) -> tuple[Shape, DType]:
        """The shape and dtype of a result, a tensor of the mesh."""
        root = self.body.operands[index]
        return whole_shape(root.shape, self.outputs[index]), root.dtype

    def cotangents(self, index: int, g: Node, operands: Sequence[Node]) -> tuple[Any, ...]:
        """The cotangent of each operand, for one of a result: results of another region."""
        backward, places = _backward(self, index)
        if backward is None:
            return (None,) * len(operands)
        given = [*operands, g]
        read = [given[place] for place in backward.reads]
        return tuple(None if place is None else apply(SHARD_MAP, (backward.region, place), read) for place in places)


@dataclass(frozen=True)
class ReadRegion:
    """A region, and which of the values that were offered to it are its operands, in order."""

    region: ShardRegion
    reads: tuple[int, ...]


def region_of(
    results: Sequence[Varying], outputs: Sequence[Layout], offered: Sequence[Leaf], inputs: Sequence[Layout | None]
) -> ReadRegion:
    """The region of results that lie as `outputs` say, over leaves that stand for what a device has of values.

    Raises MeshError (E_MESH) for a result that varies along an axis along which its layout has copies, for a layout
    that splits by axes of other meshes, and for a result that depends on no value.
    """
    mesh = outputs[0].mesh
    settled = [_settled(result, laid, mesh) for result, laid in zip(results, outputs, strict=True)]
    body, leaves = interning.bundle(*_roots(settled)), joined(settled)[1]
    if not any(leaf.structure.kind == "buffer" for leaf in leaves):
        raise MeshError(
            "a function that reads none of its arguments",
            hints=["dist.tensor(shape, layout, mesh) makes a tensor of nothing"],
        )
    reads = tuple(offered.index(leaf) for leaf in leaves)
    return ReadRegion(ShardRegion(body, mesh, tuple(inputs[place] for place in reads), tuple(outputs)), reads)


def _roots(nodes: Sequence[Node]) -> tuple[tuple[Structure, ...], tuple[Any, ...]]:
    structure, _ = joined(nodes)
    return structure.operands, structure.positions


def _settled(result: Varying, laid: Layout, mesh: MeshShape) -> Node:
    split = [axis for axes in laid.dims for axis in axes]
    copied = sorted(result.axes - set(split))
    if copied:
        raise MeshError(
            f'a result that differs between the devices along {", ".join(copied)} cannot lie as "{laid}", with copies '
            "there",
            hints=[
                f"split a dimension by {copied[0]!r} in out_specs",
                f"dist.all_reduce(x, axis={copied[0]!r}) makes it the same on all of them",
            ],
        )
    node: Node = varied(result, split, mesh).node
    return node


@lru_cache(maxsize=1 << 10)
def _backward(region: ShardRegion, index: int) -> tuple[ReadRegion | None, tuple[int | None, ...]]:
    """The region of the cotangents of operands, which reads the operands and one of a result, and which of its results
    is that of each operand; None where there is none.
    """
    leaves = [_own_leaf(region, place) for place in range(len(region.inputs))]
    order = region.body.post_order()
    root = nodes_of(order[:-1], leaves)[order[-1].operands[index]]
    laid = region.outputs[index]
    arriving = _own_buffer(root.structure.shape, root.structure.dtype, laid)
    by_leaf = by_leaves([root], [leaf_node(arriving)])
    wanted = [place for place, leaf in enumerate(leaves) if leaf in by_leaf and region.inputs[place] is not None]
    if not wanted:
        return None, ()
    layouts = [each for place in wanted if (each := region.inputs[place]) is not None]
    results = varying([by_leaf[leaves[place]] for place in wanted], region.mesh)
    made = region_of(results, layouts, [*leaves, arriving], [*region.inputs, laid])
    return made, tuple(wanted.index(place) if place in wanted else None for place in range(len(leaves)))


def _own_leaf(region: ShardRegion, place: int) -> Leaf:
    """What stands for an operand in the body, once more."""
    laid = region.inputs[place]
    structure = next(o.structure for o in region.body.post_order() if o.leaf == place)
    return Placeholder(structure) if laid is None else own_value(structure, laid.mesh, split_axes(laid))


def _own_buffer(shape: Shape, dtype: DType, laid: Layout) -> Leaf:
    return own_value(interning.buffer(shape, contiguous_strides(shape), dtype), laid.mesh, split_axes(laid))


def own_part(shape: Shape, dtype: DType, laid: Layout) -> Leaf:
    """A leaf that stands for a device's shard. Raises MeshError (E_MESH) where shards are not all alike."""
    for dimension, axes in enumerate(laid.dims):
        parts = math.prod(laid.mesh.size(axis) for axis in axes)
        if shape[dimension] % parts:
            raise MeshError(
                f'dimension {dimension} of a tensor of shape {shape} as "{laid}": {parts} devices do not divide '
                f"{shape[dimension]}",
                hints=[
                    "where every device computes with its shard, all shards have one shape: pad the tensor",
                    "algebra on the whole tensor takes any extents",
                ],
            )
    return _own_buffer(laid.largest_shape(shape), dtype, laid)


def split_axes(laid: Layout) -> list[str]:
    """The axes that split a tensor: along these its shards differ."""
    return [axis for axes in laid.dims for axis in axes]


def whole_shape(own: Shape, laid: Layout) -> Shape:
    """The shape of the tensor whose shards have a shape."""
    return tuple(
        extent * math.prod(laid.mesh.size(axis) for axis in axes) for extent, axes in zip(own, laid.dims, strict=True)
    )
