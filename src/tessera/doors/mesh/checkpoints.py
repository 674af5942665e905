"""`dist.save` and `dist.load`: states of programs, as trees of tensors and numbers, in checkpoints of torch's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import leaf_node
from tessera.sharding.checkpoints.pieces import Number, Piece, Pieces, pieces_of, regions
from tessera.sharding.tensors.shards import Shards, shards_of

_NUMBERS = (bool, int, float, str, type(None))


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Writes a state: tensors and numbers in dictionaries, lists and tuples, named "optimizer.moments.0" by their way
    through them. Every rank of a job calls it; each writes shards that it holds, and what several hold, one of them.

    The folder is one of torch.distributed.checkpoint, which any number of ranks reads, in any layout, by `dist.load` or
    by torch. It takes the place of the one before at once: where a rank is lost meanwhile, the old one is whole.

    Raises CheckpointError (E_CHECKPOINT) where it cannot be written, ArgumentError (E_ARGUMENT) for what is neither a
    tensor nor a number.
    """
    from tessera.sharding.checkpoints.storing import write  # loads torch.distributed.checkpoint

    tensors: dict[str, Pieces] = {}
    numbers: dict[str, Number] = {}
    for name, value in named(state):
        if isinstance(value, Tensor):
            tensors[name] = _pieces(value)
        elif isinstance(value, torch.Tensor):
            tensors[name] = Pieces(tuple(value.shape), value.dtype, [_whole(value.detach())])
        else:
            numbers[name] = value
    write(Path(path), tensors, numbers)


def load(path: str | os.PathLike[str], into: Any) -> Any:
    """The state of a checkpoint, in the form of `into`: tensors of the same shapes and dtypes, which lie as those do,
    however they lay when they were saved. Torch tensors are written to, and numbers read. Every rank of a job calls it.

    Raises CheckpointError (E_CHECKPOINT) for a checkpoint that is not there, and for names that it does not have,
    ShapeMismatchError (E_SHAPE_MISMATCH) and DTypeError (E_DTYPE) for tensors that are others in it.
    """
    from tessera.sharding.checkpoints.storing import read

    rooms: dict[str, _Room] = {}
    tensors: dict[str, Pieces] = {}
    numbers: dict[str, Number] = {}
    for name, value in named(into):
        if isinstance(value, Tensor):
            rooms[name] = _Room(value)
            tensors[name] = rooms[name].pieces
        elif isinstance(value, torch.Tensor):
            tensors[name] = Pieces(tuple(value.shape), value.dtype, [_whole(value.detach())])
        else:
            numbers[name] = value
    found = read(Path(path), tensors, numbers)
    return _filled(into, {**found, **{name: room.tensor() for name, room in rooms.items()}})


def named(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and numbers of a state with their names. Raises ArgumentError for what is neither."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from named(value, f"{prefix}{key}.")
    elif isinstance(state, tuple | list):
        for number, value in enumerate(state):
            yield from named(value, f"{prefix}{number}.")
    elif isinstance(state, (Tensor, torch.Tensor, *_NUMBERS)):
        yield prefix.removesuffix(".") or "state", state
    else:
        raise ArgumentError(
            f"a {type(state).__name__} in a state, at {prefix.removesuffix('.')!r}",
            hints=["tensors and numbers, in dictionaries, lists and tuples"],
        )


def _filled(state: Any, found: dict[str, Any], prefix: str = "") -> Any:
    if isinstance(state, dict):
        return {key: _filled(value, found, f"{prefix}{key}.") for key, value in state.items()}
    if isinstance(state, tuple | list):
        parts = [_filled(value, found, f"{prefix}{number}.") for number, value in enumerate(state)]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return found.get(prefix.removesuffix(".") or "state", state)


def _pieces(tensor: Tensor) -> Pieces:
    if tensor.mesh is None or tensor.layout is None:
        elements = to_torch(tensor.eval().state[1][0])
        return Pieces(tuple(elements.shape), elements.dtype, [_whole(elements)])
    places = regions(tensor.shape, tensor.mesh, tensor.layout)
    shards = shards_of(tensor.eval().state[1][0]).leaves() if places else {}
    held = {region: to_torch(shards[place]) for place, region in places.items()}
    return pieces_of(tensor.shape, tensor.dtype.torch, held)


class _Room:
    """Memory for a tensor that lies as another one does."""

    def __init__(self, like: Tensor) -> None:
        self._mesh, self._layout, self._shape, self._dtype = like.mesh, like.layout, like.shape, like.dtype
        dtype = like.dtype.torch
        if self._mesh is None or self._layout is None:
            self._whole = torch.empty(like.shape, dtype=dtype, device="cpu")
            self.pieces = Pieces(like.shape, dtype, [_whole(self._whole)])
            return
        self._places = regions(like.shape, self._mesh, self._layout)
        self._held = {region: torch.empty(region.sizes, dtype=dtype, device="cpu") for region in self._places.values()}
        self.pieces = pieces_of(like.shape, dtype, self._held)

    def tensor(self) -> Tensor:
        """The tensor, once the memory is written: torch counts writes, and this is none later than the tensor."""
        if self._mesh is None or self._layout is None:
            return cast(Tensor, leaf_node(from_torch(self._whole)))
        leaves = {place: from_torch(self._held[region]) for place, region in self._places.items()}
        return cast(Tensor, leaf_node(Shards(self._mesh, self._shape, self._dtype, self._layout, leaves).leaf()))


def _whole(elements: torch.Tensor) -> Piece:
    return Piece((0,) * elements.dim(), elements)
