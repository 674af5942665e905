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
from tessera.sharding.exchange.communicator import AddressedStart
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
        self._one = GroupExchange(mesh, steps[0], shapes[0]) if len(steps) == 1 else None
        self._packed = None if self._one is not None else PackedExchange(mesh, steps, shapes)
        self._shape, self._dtype = shapes[0], dtype
        self._may_be_addressed = self._one is not None and mesh.state == "running"
        self._addressed: _AddressedExchange | None = None

    @property
    def goes_on(self) -> bool:
        """Whether what was begun comes about by itself."""
        exchange = self._one or self._packed
        assert exchange is not None, "a bucket of several is packed"
        return exchange.goes_on

    def begin(self, operands: Sequence[ByPlace]) -> Finishing:
        """Begins them, each of what devices have."""
        if self._may_be_addressed:
            if self._addressed is None:
                self._address()
            begun = None if self._addressed is None else self._addressed.begin(operands[0])
            if begun is not None:
                return begun
        parts = [{place: to_torch(leaf).contiguous() for place, leaf in each.items()} for each in operands]
        if self._one is not None:
            waiting = self._one.begin(parts[0])
            return lambda: [_leaves(waiting())]
        assert self._packed is not None, "a bucket of several is packed"
        packed = self._packed.begin(parts)
        return lambda: [_leaves(each) for each in packed()]

    def _address(self) -> None:
        """Looks, at the first exchange, whether it is one of addresses: tensors cost more than what is small."""
        exchange = self._one
        assert exchange is not None
        (place,) = exchange.mesh.places
        at = exchange.mesh.grid.coordinates(place)
        before, after = (laid.local_shape(self._shape, at) for laid in (exchange.step.source, exchange.step.target))
        start = exchange.addressed(before, self._dtype.torch)
        if start is None:
            self._may_be_addressed = False
            return
        self._addressed = _AddressedExchange(start, exchange.step, place, before, after, self._dtype)


class _AddressedExchange:
    """An exchange of contiguous memory of one shape."""

    def __init__(
        self, start: AddressedStart, step: MeshStep, place: int, before: Shape, after: Shape, dtype: DType
    ) -> None:
        self._start, self._step, self._place = start, step, place
        self._operand, self._result = result_structure(before, dtype), result_structure(after, dtype)
        self._operand_bytes, self._result_bytes = (math.prod(shape) * dtype.itemsize for shape in (before, after))

    def begin(self, operands: ByPlace) -> Finishing | None:
        """Begins it; None where what the device has lies in another way."""
        operand = operands[self._place]
        if operand.structure is not self._operand:
            return None
        result = buffers.allocate(self._result_bytes)
        handle = self._start(operand, result)

        def finished() -> Sequence[ByPlace]:
            handle.end()
            note_end(handle, self._step, self._operand_bytes)
            return [{self._place: Leaf(self._result, result.address, result, 0)}]

        return finished


def _leaves(made: Mapping[int, torch.Tensor]) -> dict[int, Leaf]:
    return {place: from_torch(tensor) for place, tensor in made.items()}
