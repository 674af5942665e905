"""Distributed tensors, as far as one device goes: a tensor of a shape, which no mesh shares out.

A = dist.tensor((B, D), dtype="fp8_e4m3")
C = op.matmul(A, dist.tensor((D, H), dtype="bf16"), accum_dtype="fp32")
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from tessera import op
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.sharding.planner import plan as _planning
from tessera.sharding.planner.plan import MeshPlan
from tessera.sharding.planner.transformer import Transformer

__all__ = ["MeshPlan", "Transformer", "plan", "tensor"]


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


def plan(
    model: Transformer,
    *,
    batch: int,
    topology: str = "gb200-nvl72",
    devices: int | None = None,
    memory: float | None = None,
    precision: str = "bf16",
    fixed: Mapping[str, object] | None = None,
) -> MeshPlan:
    """The best ways to train `model` with `batch` sequences a step on `devices` of a topology (without: all of them).

    `memory` is what a device may keep, in bytes; without, its own less 5 %. `precision` of the blocks' products is
    "bf16" or "fp8". `fixed` holds choices that are made: {"tp": 8, "schedule": "1f1b"}. Printed, a plan is a table
    with reasons. Nothing of it is measured: all times and bytes are predicted, and it says how far such predictions
    were off.

    Raises ArgumentError (E_ARGUMENT) where the model cannot be divided so, MemoryLimitError (E_MEMORY_LIMIT) where no
    way of dividing it fits.
    """
    return _planning.plan(
        model, batch=batch, system=topology, devices=devices, memory=memory, precision=precision, fixed=fixed
    )
