"""Distributed tensors, as far as one device goes: a tensor of a shape, which no mesh shares out.

A = dist.tensor((B, D), dtype="fp8_e4m3")
C = op.matmul(A, dist.tensor((D, H), dtype="bf16"), accum_dtype="fp32")
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import overload

from tessera import op
from tessera.dtypes import dtype_of
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy import interning
from tessera.lazy.leaf import Placeholder
from tessera.lazy.node import joined, leaf_node
from tessera.lazy.structure import contiguous_strides
from tessera.sharding.planner import plan as _planning
from tessera.sharding.planner.plan import MeshPlan
from tessera.sharding.planner.traced import StepPlan, plan_step
from tessera.sharding.planner.transformer import Transformer

__all__ = ["MeshPlan", "StepPlan", "Transformer", "plan", "tensor"]


def tensor(shape: Iterable[int], dtype: object = "fp32") -> Tensor:
    """A tensor of `shape`, filled with reproducible standard-normal values as `op.tensor` fills it, in `dtype`.

    It lies on this device as a whole, as everything does without a mesh. Raises ArgumentError (E_ARGUMENT) for what is
    no row of extents, DTypeError (E_DTYPE) for a dtype that tensors do not have.
    """
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError as error:
        hints = ["a shape is a tuple of ints", "op.tensor(data) takes data"]
        raise ArgumentError(f"{shape!r} is no shape", hints=hints) from error
    return op.tensor(extents, dtype=dtype)


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
    return plan_step(structure, order, count, rates, fixed or {}, limit)


def _stand_in(argument: Tensor | tuple[int, ...]) -> Tensor:
    if isinstance(argument, Tensor):
        return argument
    shape = tuple(map(operator.index, argument))
    buffer = interning.buffer(shape, contiguous_strides(shape), dtype_of("bf16"))
    tensor: Tensor = leaf_node(Placeholder(buffer))
    return tensor


def _tensors(made: object) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    if isinstance(made, tuple | list) and made:
        return [tensor for each in made for tensor in _tensors(each)]
    raise ArgumentError(f"a step that is planned gives tensors, or tuples of them, not {type(made).__name__}")
