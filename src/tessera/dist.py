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
from typing import get_args, overload

import torch

from tessera import op
from tessera.doors.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    broadcast,
    permute,
    reduce_scatter,
)
from tessera.doors.mesh.checkpoints import load, save
from tessera.doors.mesh.dtensors import from_dtensor, to_dtensor
from tessera.doors.mesh.pinning import Pinned, pin
from tessera.doors.mesh.pipelines import MicrobatchReduction, Pipeline, scheduled
from tessera.doors.mesh.shard_map import shard_map
from tessera.dtypes import SUPPORTED, dtype_of
from tessera.errors import ArgumentError, DTypeError, MeshError
from tessera.handle import Tensor
from tessera.lazy.devices import is_mesh
from tessera.lazy.layouts import Layout
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.node import joined, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import contiguous_strides
from tessera.sharding.exchange.communication import communication
from tessera.sharding.pipeline.actions import PipelineSchedule
from tessera.sharding.planner import plan as _planning
from tessera.sharding.planner.applied import AppliedPlan, AppliedStep
from tessera.sharding.planner.plan import MeshPlan
from tessera.sharding.planner.traced import StepPlan, plan_step
from tessera.sharding.planner.transformer import Transformer
from tessera.sharding.tensors import making, values
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.specs import ShardSpec, layout_on
from tessera.sharding.tensors.values import Init
from tessera.typing import DTypeLike

__all__ = [
    "AppliedPlan",
    "AppliedStep",
    "Layout",
    "Mesh",
    "MeshPlan",
    "Pinned",
    "Pipeline",
    "PipelineSchedule",
    "ShardSpec",
    "StepPlan",
    "Transformer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "broadcast",
    "communication",
    "constrain",
    "distribute",
    "from_dtensor",
    "from_local",
    "load",
    "permute",
    "pin",
    "pipeline",
    "plan",
    "reduce_scatter",
    "save",
    "shard_map",
    "tensor",
    "to_dtensor",
]


def tensor(
    shape: Iterable[int],
    layout: ShardSpec | Layout | None = None,
    mesh: Mesh | None = None,
    dtype: DTypeLike = "fp32",
    *,
    init: Init = "normal",
    seed: int | None = None,
    dims: Sequence[str] | None = None,
) -> Tensor:
    """A tensor of `shape` on a mesh, filled with reproducible values: "normal" (the default), "uniform", "zeros" or
    "ones". A value is a function of `seed` and of its element's place in the whole tensor, so that all layouts of one
    seed hold the same; without `seed` each tensor has its own, the same on every rank. No memory is taken before values
    are read, and then for the shards of this process alone. `dims` are names of the dimensions, for the layout.

    Without a mesh the tensor lies on this device: where `init` or `seed` is given with the values that it has on every
    mesh, else filled as `op.tensor` fills it. Raises ArgumentError (E_ARGUMENT) for what is no row of extents and no
    seed of 64 bits, DTypeError (E_DTYPE) for a dtype that tensors do not have, MeshError (E_MESH) for a layout that the
    mesh does not have, or without one.
    """
    extents = _extents(shape)
    if mesh is None and layout is not None:
        raise MeshError("a layout without a mesh", hints=["dist.tensor(shape, layout, mesh)"])
    if init not in values.INITS:
        raise ArgumentError(f"init={init!r}", hints=[f"one of {', '.join(values.INITS)}"])
    if mesh is None and init == "normal" and seed is None:
        return op.tensor(extents, dtype=dtype)
    kind = dtype_of(dtype)
    if kind not in SUPPORTED or kind.kind == "complex":
        raise DTypeError(f"tensors of {kind} are not made of random values by their places")
    number = values.next_seed() if seed is None else _seed(seed)
    if mesh is None:
        return op.tensor(values.region_of(extents, [(0, extent) for extent in extents], kind, init, number))
    laid = layout_on(mesh, layout, len(extents), dims)
    return typed(Tensor, leaf_node(making.of_values(extents, kind, mesh, laid, init, number)))


def distribute(full: object, layout: ShardSpec | Layout | None, mesh: Mesh) -> Tensor:
    """A tensor whose whole every process has, shared out: each keeps its shards, copied. Without a layout every device
    holds the whole. On a running mesh `full` has to be the same on every rank.

    Raises MeshError (E_MESH) for a layout that the mesh does not have, and for a tensor that lies on a mesh already.
    """
    node = typed(Tensor, as_node(full))
    if is_mesh(node.structure.device):
        raise MeshError("a tensor on a mesh already", hints=["x.reshard(layout) changes its layout"])
    laid = layout_on(mesh, layout, node.ndim)
    return typed(Tensor, leaf_node(making.of_whole(node.torch(), node.dtype, mesh, laid)))


def from_local(
    local: torch.Tensor | Callable[[Mapping[str, int]], torch.Tensor], layout: ShardSpec | Layout | None, mesh: Mesh
) -> Tensor:
    """The tensor of which this process has a shard, whose memory is borrowed. On an emulated mesh `local` is a function
    of coordinates, `lambda at: batches[at["dp"]]`, which gives the shard of each place. Global extents are the sums of
    the shards' along what is split; a running mesh exchanges them.

    Raises MeshError (E_MESH) for shards that are no parts of one tensor: parts are of ceil(n / devices) elements, the
    last ones short or empty.
    """
    return typed(Tensor, leaf_node(making.of_shards(local, mesh, lambda rank: layout_on(mesh, layout, rank))))


def constrain(x: Tensor, layout: ShardSpec | Layout | None) -> Tensor:
    """x, which lies as a layout says where it is computed; what has to move for that is moved there. Differentiable:
    the cotangent gets the same layout. `x.reshard(layout)` is the same.

    Raises MeshError (E_MESH) for a tensor that lies on no mesh, and for a layout that its mesh does not have.
    """
    return x.reshard(layout)


def pipeline(
    stages: Sequence[Callable[..., object]],
    mesh: Mesh,
    axis: str = "pp",
    *,
    microbatches: int | None = None,
    schedule: str | PipelineSchedule = "1f1b",
    loss: Callable[..., Tensor] | None = None,
    reduction: MicrobatchReduction = "mean",
) -> Pipeline:
    """A training step of a model in stages, each on the devices at one place along an axis of the mesh: `value,
    gradients = step(weights, batch, *targets)`.

    A stage is a function of its weights and of what the stage before gave (the batch, of the first one): a tensor, or a
    tuple of tensors. `loss` is a function of what the last stage gives and of the targets. Rank r of p holds the stages
    r, r + p, r + 2p, ...; several only where `schedule` is "interleaved"; others are "gpipe", "1f1b", "zero-bubble",
    and a table of one's own. The batch is cut into `microbatches` (without: four times the ranks), each of as many rows
    of every rank. The value and gradients are the "mean" or the "sum" of those of microbatches.

    Raises MeshError (E_MESH) for an axis that the mesh has not, ArgumentError (E_ARGUMENT) for stages that the ranks
    cannot share, and for numbers that a schedule is not made for, PipelineError (E_PIPELINE) for a table that breaks a
    rule.
    """
    if axis not in mesh.shape:
        raise MeshError(f"the mesh has no axis {axis!r}", hints=[f"its axes: {', '.join(mesh.axes)}"])
    if reduction not in get_args(MicrobatchReduction):
        raise ArgumentError(f"reduction={reduction!r}", hints=[f"one of {', '.join(get_args(MicrobatchReduction))}"])
    table = scheduled(len(stages), mesh.shape[axis], microbatches, schedule)
    return Pipeline(stages, mesh, axis, table, loss, reduction)


def _extents(shape: Iterable[int]) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError as error:
        hints = ["a shape is a tuple of ints", "op.tensor(data) takes data"]
        raise ArgumentError(f"{shape!r} is no shape", hints=hints) from error
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"a shape of negative extents: {extents}")
    return extents


def _seed(seed: int) -> int:
    number = operator.index(seed)
    if not -(1 << 63) <= number < 1 << 63:
        raise ArgumentError(f"seed={number}", hints=["a seed is a number of 64 bits, with its sign"])
    return number


@overload
def plan(
    model: Transformer,
    *,
    batch: int,
    topology: str = "gb200-nvl72",
    devices: int | None = None,
    memory: float | None = None,
    precision: str = "bf16",
    fixed: Mapping[str, object] | None = None,
) -> MeshPlan: ...


@overload
def plan(
    model: Callable[..., object],
    *arguments: Tensor | tuple[int, ...],
    topology: str = "gb200-nvl72",
    devices: int | None = None,
    memory: float | None = None,
    precision: str = "bf16",
    fixed: Mapping[str, object] | None = None,
) -> StepPlan: ...


def plan(
    model: Transformer | Callable[..., object],
    *arguments: Tensor | tuple[int, ...],
    batch: int | None = None,
    topology: str = "gb200-nvl72",
    devices: int | None = None,
    memory: float | None = None,
    precision: str = "bf16",
    fixed: Mapping[str, object] | None = None,
) -> MeshPlan | StepPlan:
    """The best ways to run a model on `devices` of a topology (without: all of them), as a table with reasons.

    Of a `Transformer`, which trains with `batch` sequences a step: axes, ZeRO stage, recomputation, microbatches and
    pipeline. Of a function that makes tensors of `arguments`: meshes of axes "tp" and "dp", and the layouts of
    arguments and results; a shape stands for a bf16 tensor that takes no memory. Nothing is computed. `memory` is what
    a device may keep, in bytes; without, its own less 5 %. `precision` of products is "bf16" or "fp8". `fixed` holds
    choices that are made: {"tp": 8, "schedule": "1f1b"}. All times and bytes are predicted, and the table says how far
    such predictions were off.

    Raises ArgumentError (E_ARGUMENT) where the model cannot be divided so, MemoryLimitError (E_MEMORY_LIMIT) where no
    way of dividing it fits.
    """
    if isinstance(model, Transformer):
        if batch is None or arguments:
            raise ArgumentError("a Transformer is planned by its batch alone", hints=["dist.plan(model, batch=1536)"])
        return _planning.plan(
            model, batch=batch, system=topology, devices=devices, memory=memory, precision=precision, fixed=fixed
        )
    if batch is not None:
        raise ArgumentError("a step's batch is in the shapes of its arguments", hints=["leave batch= away"])
    given = [_stand_in(argument) for argument in arguments]
    structure, leaves = joined(_tensors(model(*given)))
    order = [leaves.index(tensor.state[1][0]) if tensor.state[1][0] in leaves else None for tensor in given]
    count, rates, limit = _planning.place(topology, devices, memory, precision)
    return plan_step(structure, order, count, rates, fixed or {}, limit, model)


def _stand_in(argument: Tensor | tuple[int, ...]) -> Tensor:
    if isinstance(argument, Tensor):
        return argument
    shape = _extents(argument)
    buffer = interning.buffer(shape, contiguous_strides(shape), dtype_of("bf16"))
    tensor: Tensor = leaf_node(Placeholder(buffer))
    return tensor


def _tensors(made: object) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    if isinstance(made, tuple | list) and made:
        return [tensor for each in made for tensor in _tensors(each)]
    raise ArgumentError(f"a step that is planned gives tensors, or tuples of them, not {type(made).__name__}")
