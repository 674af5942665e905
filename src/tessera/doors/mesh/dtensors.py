"""Torch's tensors on meshes, `DTensor`, as tensors of this package, and the other way round; memory is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from tessera.dtypes import dtype_of
from tessera.errors import MeshError
from tessera.handle import Tensor
from tessera.ir.anchors.anchor import ADD, MUL, Reduction
from tessera.lazy.layouts import Layout, layout
from tessera.lazy.leaves.export import exported
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import leaf_node
from tessera.lazy.structures.structure import contiguous_strides
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.shards import Shards, shards_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_REDUCTIONS: Final[Mapping[str, Reduction]] = {"sum": ADD, "product": MUL, "min": "min", "max": "max"}


def from_dtensor(tensor: DTensor) -> Tensor:
    """The tensor of which a DTensor of torch's has the shard of this rank, whose memory is borrowed. Sums that are not
    formed yet (`Partial`) are pending here, too, and formed where something needs them.

    Raises MeshError (E_MESH) for placements that layouts do not have, among them `_StridedShard`, and for a shard that
    is not of the size that its placements say; GradDetachedError (E_GRAD_DETACHED) for one that requires grad.
    """
    mesh = Mesh.from_torch(tensor.device_mesh)
    laid = _layout_of(tensor, mesh)
    local, shape = tensor.to_local(), tuple(tensor.shape)
    place = mesh.places[0]
    wanted = laid.local_shape(shape, mesh.grid.coordinates(place))
    if tuple(local.shape) != wanted:
        raise MeshError(
            f"a DTensor of shape {shape} as {list(tensor.placements)} whose shard here is {tuple(local.shape)}, "
            f"not {wanted}",
            hints=["DTensor.from_local takes shards as torch.chunk makes them"],
        )
    shards = Shards(mesh, shape, dtype_of(local.dtype), laid, {place: from_torch(local)})
    return cast(Tensor, leaf_node(shards.leaf()))


def to_dtensor(x: Tensor) -> DTensor:
    """The DTensor of torch's over the shard of this rank, whose memory is shared; x is evaluated. All ranks of the job
    ask for it, the first time on a mesh.

    Raises MeshError (E_MESH) for a tensor on no mesh, or on one that is not running, and where several axes split a
    dimension in another order than the mesh's, which placements cannot say.
    """
    from torch.distributed.tensor import DTensor

    if x.mesh is None:
        raise MeshError(
            "a DTensor of a tensor that lies on no mesh", hints=["dist.distribute(tensor, layout, mesh) puts it on one"]
        )
    leaf = x.eval().state[1][0]
    shards = shards_of(leaf)
    mesh, laid = shards.mesh, shards.layout
    device_mesh, placements = mesh.to_torch(), _placements_of(laid, mesh)
    local = exported(shards.leaves()[mesh.places[0]])
    shape = shards.shape
    made: DTensor = DTensor.from_local(
        local, device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=contiguous_strides(shape)
    )
    return made


def _layout_of(tensor: DTensor, mesh: Mesh) -> Layout:
    from torch.distributed.tensor import Partial, Replicate, Shard

    dims: list[tuple[str, ...]] = [()] * tensor.dim()
    pending: list[tuple[str, Reduction]] = []
    for axis, placement in zip(mesh.axes, tensor.placements, strict=True):
        if type(placement) is Shard:
            dims[placement.dim] += (axis,)
        elif type(placement) is Partial and placement.reduce_op in _REDUCTIONS:
            pending.append((axis, _REDUCTIONS[placement.reduce_op]))
        elif type(placement) is not Replicate:
            raise MeshError(
                f"a DTensor that is placed as {placement!r} along {axis!r}",
                hints=["redistribute it to Shard, Replicate, or Partial of a sum, product, minimum or maximum"],
            )
    return layout(mesh.grid, dims, pending)


def _placements_of(laid: Layout, mesh: Mesh) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    order = list(mesh.axes)
    found: dict[str, Any] = {}
    for dim, axes in enumerate(laid.dims):
        if sorted(axes, key=order.index) != list(axes):
            raise MeshError(
                f'a DTensor of a tensor that lies as "{laid}", split in another order than {", ".join(order)}',
                hints=["x.reshard(...) with the axes of each dimension in the order of the mesh"],
            )
        found |= {axis: Shard(dim) for axis in axes}
    names = {reduction: name for name, reduction in _REDUCTIONS.items()}
    found |= {axis: Partial(names[reduction]) for axis, reduction in laid.pending}
    return [found.get(axis, Replicate()) for axis in order]
