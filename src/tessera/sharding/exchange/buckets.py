"""Buckets: the exchanges that a program begins as one, bound to a mesh, of leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from tessera.dtypes import DType
from tessera.lazy.layouts import Shape
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, result_structure
from tessera.lazy.leaves.sources import from_torch
from tessera.runtime.memory import buffers
from tessera.sharding.exchange.communicator import COMBINING, StartingSum
from tessera.sharding.exchange.groups import GroupExchange, PackedExchange, note_end
from tessera.sharding.partitioning.redistribution import MeshStep
from tessera.sharding.tensors.mesh import Mesh

ByPlace: TypeAlias = Mapping[int, Leaf]

Finishing: TypeAlias = Callable[[], Sequence[ByPlace]]
"""Gives by place what each step made, when it is there."""


class Bucket:
    """Steps of tensors of some shapes and one dtype that travel as one. On a running mesh every rank of a group begins
    the same ones in the same order.
    """

    def __init__(self, mesh: Mesh, steps: Sequence[MeshStep], shapes: Sequence[Shape], dtype: DType) -> None:
        self._mesh = mesh
        self._one = GroupExchange(mesh, steps[0], shapes[0]) if len(steps) == 1 else None
        self._packed = None if self._one is not None else PackedExchange(mesh, steps, shapes)
        self._is_sum = self._one is not None and mesh.state == "running" and steps[0].kind == "AllReduce"
        self._shape, self._dtype = shapes[0], dtype
        self._sum: _AddressedSum | None = None

    def begin(self, operands: Sequence[ByPlace]) -> Finishing:
        """Begins them, each of what devices have."""
        if self._is_sum:
            ((place, operand),) = operands[0].items()
            adding = self._adding(place)
            if adding is not None and operand.structure is adding.structure:
                return adding.begin(place, operand)
        parts = [{place: to_torch(leaf).contiguous() for place, leaf in each.items()} for each in operands]
        if self._one is not None:
            waiting = self._one.begin(parts[0])
            return lambda: [_leaves(waiting())]
        assert self._packed is not None, "a bucket of several is packed"
        packed = self._packed.begin(parts)
        return lambda: [_leaves(each) for each in packed()]

    def _adding(self, place: int) -> _AddressedSum | None:
        """What forms the sum without tensors, where the communicator does: tensors of torch cost more than it."""
        if self._sum is None:
            assert self._one is not None
            step, communicator = self._one.step, self._one.communicator
            shape = step.target.local_shape(self._shape, self._mesh.grid.coordinates(place))
            start = communicator.addressed_sum(shape, self._dtype.torch, COMBINING[step.reduction])
            if start is None:
                self._is_sum = False
                return None
            self._sum = _AddressedSum(start, step, shape, self._dtype)
        return self._sum


class _AddressedSum:
    """A small sum of memory of one structure."""

    def __init__(self, start: StartingSum, step: MeshStep, shape: Shape, dtype: DType) -> None:
        self._start, self._step = start, step
        self.structure = result_structure(shape, dtype)
        self._nbytes = math.prod(shape) * dtype.itemsize

    def begin(self, place: int, operand: Leaf) -> Finishing:
        result = buffers.allocate(self._nbytes)
        handle = self._start(operand.address, result.address)

        def finished(_: Leaf = operand) -> Sequence[ByPlace]:  # whose memory is read until then
            handle.end()
            note_end(handle, self._step, self._nbytes)
            return [{place: Leaf(self.structure, result.address, result, 0)}]

        return finished


def _leaves(made: Mapping[int, torch.Tensor]) -> dict[int, Leaf]:
    return {place: from_torch(tensor) for place, tensor in made.items()}
