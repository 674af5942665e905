"""Shards: the parts of a tensor that this process holds, which are allocated when one is first read."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch

from tessera import settings
from tessera.dtypes import DType
from tessera.errors import MemoryLimitError
from tessera.lazy.evaluation import evaluate
from tessera.lazy.layouts import Layout, Shape, replicated
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, ShardedLeaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node
from tessera.lazy.promise import Promise
from tessera.lazy.structures import interning
from tessera.ops.collective.records import CONSTRAIN
from tessera.sharding.tensors.mesh import Mesh


class LaterShards(Protocol):
    """Shards that are yet to come, by place."""

    def take(self) -> Mapping[int, Leaf]:
        """Gives them when they are there. Raises what waiting for other ranks raises."""


Making: TypeAlias = Callable[[int], torch.Tensor]
"""Gives the shard at a place of the mesh."""


class Shards:
    """The owner of a leaf that is shared out over a mesh. Without `made` its shards are on their way. Those that are
    `late` are the results of a program that was left before they were there, on some ranks if not on this one: which
    program, and which of its results, in their order.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: Shape,
        dtype: DType,
        layout: Layout,
        made: Mapping[int, Leaf] | Making | LaterShards | None,
        late: tuple[int, int] | None = None,
    ) -> None:
        self.mesh = mesh
        self.shape = shape
        self.dtype = dtype
        self.layout = layout
        self._made = made
        self.late = late
        self._lock = threading.Lock()

    def leaf(self) -> Leaf:
        """A leaf over these shards."""
        return ShardedLeaf(interning.sharded(self.shape, self.dtype, self.layout), 0, self)

    def leaves(self) -> Mapping[int, Leaf]:
        """The shards that this process holds, by place; waits for those that are yet to come. Raises AbstractMeshError
        (E_MESH_ABSTRACT) where there are none, MemoryLimitError (E_MEMORY_LIMIT) where they do not fit, and what
        waiting for other ranks raises.
        """
        made = self._made
        if made and type(made) is dict:
            return made
        places = self.mesh.places
        if made is None:
            raise AssertionError("shards that are on their way are waited for before they are read")
        if isinstance(made, Mapping):
            return made
        if not callable(made):
            taken = self._made = made.take()
            return taken
        with self._lock:
            if self._made is made:
                check_memory(self.shard_bytes * len(places), f"{len(places)} shards of {describe(self)}")
                self._made = {place: from_torch(made(place)) for place in places}
            assert isinstance(self._made, Mapping)
            return self._made

    @property
    def held(self) -> tuple[Leaf, ...]:
        """The shards that this process holds as far as they exist already; those that are yet to come are waited
        for.
        """
        if self.late is not None:
            return tuple(self.leaves().values())
        return tuple(self._made.values()) if isinstance(self._made, Mapping) else ()

    def fill(self, made: Mapping[int, Leaf]) -> None:
        """Takes shards that were on their way."""
        self._made = made

    @property
    def shard_bytes(self) -> int:
        """The bytes of the largest shard."""
        return math.prod(self.layout.largest_shape(self.shape)) * self.dtype.itemsize

    def whole(self) -> torch.Tensor:
        """All elements, in a new tensor. On a running mesh a collective: every rank asks for it."""
        check_memory(math.prod(self.shape) * self.dtype.itemsize, f"the whole of {describe(self)}")
        shards = self
        if not self.layout.is_replicated:
            own = self.leaf()
            wanted = (replicated(self.mesh.grid, len(self.shape)),)
            node = Node((interning.intern(CONSTRAIN, wanted, (own.structure,), (0,)), (own,)))
            evaluate([node])
            shards = shards_of(node.leaves[0])
        return to_torch(next(iter(shards.leaves().values()))).clone()


def shards_of(leaf: Leaf) -> Shards:
    """The shards of a leaf on a mesh; they may be on their way."""
    owner: Any = leaf.owner.memory if isinstance(leaf.owner, Promise) else leaf.owner
    assert isinstance(owner, Shards)
    return owner


def describe(shards: Shards) -> str:
    """A tensor for messages: `fp32[8, 4] as "tp, -"`."""
    return f'{shards.dtype}{list(shards.shape)} as "{shards.layout}"'


def check_memory(nbytes: int, what: str) -> None:
    """Raises MemoryLimitError (E_MEMORY_LIMIT) where the limit of the settings does not hold so many bytes."""
    limit = settings.current().memory_limit_bytes
    if limit is not None and nbytes > limit:
        raise MemoryLimitError(
            f"{what}: {nbytes:,} bytes; the limit is {limit:,}", hints=["split the tensor along more axes of the mesh"]
        )
