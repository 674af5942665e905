"""Distributed tensors: one program over the devices of a mesh.

mesh = dist.Mesh(axes=["tp", "dp"], devices=range(4), backend="emulated")
W = dist.tensor((512, 2048), dist.ShardSpec(("col",), ("tp",)), mesh)
x = dist.tensor((64, 512), dist.ShardSpec((0,), ("dp",)), mesh)
y = op.relu(op.matmul(x, W))       # y.layout is "dp, tp"; no data moves

Without a mesh a tensor lies on this device as a whole:

A = dist.tensor((B, D), dtype="fp8_e4m3")
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast as typed

import torch

from tessera import op
from tessera.dtypes import SUPPORTED, dtype_of
from tessera.errors import ArgumentError, DTypeError, MeshError
from tessera.handle import Tensor
from tessera.lazy.conversion import as_node
from tessera.lazy.devices import is_mesh
from tessera.lazy.layouts import Layout
from tessera.lazy.node import leaf_node
from tessera.sharding import making, values
from tessera.sharding.communication import communication
from tessera.sharding.mesh import Mesh
from tessera.sharding.specs import ShardSpec
from tessera.sharding.values import Init

__all__ = ["Layout", "Mesh", "ShardSpec", "communication", "constrain", "distribute", "from_local", "tensor"]


def tensor(
    shape: Iterable[int],
    layout: ShardSpec | None = None,
    mesh: Mesh | None = None,
    dtype: object = "fp32",
    *,
    init: Init = "normal",
    seed: int | None = None,
    dims: Sequence[str] | None = None,
) -> Tensor:
    """A tensor of `shape` on a mesh, filled with reproducible values: "normal" (the default), "uniform", "zeros" or
    "ones". A value is a function of `seed` and of its element's place in the whole tensor, so that all layouts of one
    seed hold the same; without `seed` each tensor has its own, the same on every rank. No memory is taken before values
    are read, and then for the shards of this process alone. `dims` are names of the dimensions, for the layout.

    Without a mesh the tensor lies on this device, filled as `op.tensor` fills it. Raises ArgumentError (E_ARGUMENT) for
    what is no row of extents, DTypeError (E_DTYPE) for a dtype that tensors do not have, MeshError (E_MESH) for a
    layout that the mesh does not have, or without one.
    """
    extents = _extents(shape)
    if mesh is None:
        if layout is not None:
            raise MeshError("a layout without a mesh", hints=["dist.tensor(shape, layout, mesh)"])
        return op.tensor(extents, dtype=dtype)
    kind = dtype_of(dtype)
    if kind not in SUPPORTED or kind.kind == "complex":
        raise DTypeError(f"tensors of {kind} are not made of random values on a mesh")
    if init not in values.INITS:
        raise ArgumentError(f"init={init!r}", hints=[f"one of {', '.join(values.INITS)}"])
    laid = (layout or ShardSpec()).layout(mesh, len(extents), dims)
    number = values.next_seed() if seed is None else operator.index(seed)
    return typed(Tensor, leaf_node(making.of_values(extents, kind, mesh, laid, init, number)))


def distribute(full: object, layout: ShardSpec | None, mesh: Mesh) -> Tensor:
    """A tensor whose whole every process has, shared out: each keeps its shards, copied. Without a layout every device
    holds the whole. On a running mesh `full` has to be the same on every rank.

    Raises MeshError (E_MESH) for a layout that the mesh does not have, and for a tensor that lies on a mesh already.
    """
    node = typed(Tensor, as_node(full))
    if is_mesh(node.structure.device):
        raise MeshError("a tensor on a mesh already", hints=["x.reshard(layout) changes its layout"])
    laid = (layout or ShardSpec()).layout(mesh, node.ndim)
    return typed(Tensor, leaf_node(making.of_whole(node.torch(), node.dtype, mesh, laid)))


def from_local(
    local: torch.Tensor | Callable[[Mapping[str, int]], torch.Tensor], layout: ShardSpec | None, mesh: Mesh
) -> Tensor:
    """The tensor of which this process has a shard, whose memory is borrowed. On an emulated mesh `local` is a function
    of coordinates, `lambda at: batches[at["dp"]]`, which gives the shard of each place. Global extents are the sums of
    the shards' along what is split; a running mesh exchanges them.

    Raises MeshError (E_MESH) for shards that are no parts of one tensor: parts are of ceil(n / devices) elements, the
    last ones short or empty.
    """
    spec = layout or ShardSpec()
    return typed(Tensor, leaf_node(making.of_shards(local, mesh, lambda rank: spec.layout(mesh, rank))))


def constrain(x: Tensor, layout: ShardSpec | Layout | None) -> Tensor:
    """x, which lies as a layout says where it is computed; what has to move for that is moved there. Differentiable:
    the cotangent gets the same layout. `x.reshard(layout)` is the same.

    Raises MeshError (E_MESH) for a tensor that lies on no mesh, and for a layout that its mesh does not have.
    """
    return x.reshard(layout)


def _extents(shape: Iterable[int]) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError as error:
        hints = ["a shape is a tuple of ints", "op.tensor(data) takes data"]
        raise ArgumentError(f"{shape!r} is no shape", hints=hints) from error
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"a shape of negative extents: {extents}")
    return extents
