"""What torch.distributed.checkpoint asks for: planners, which say what this process writes and reads."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from tessera.errors import CheckpointError, DTypeError, ShapeMismatchError
from tessera.sharding.checkpoints.pieces import Number, Piece, Pieces


class PieceSavePlanner(DefaultSavePlanner):
    """Writes pieces of tensors, and numbers. What several ranks hold, one of them writes."""

    def __init__(self, tensors: Mapping[str, Pieces], numbers: Mapping[str, Number]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._numbers = numbers
        self._tensors = tensors
        self._elements = {
            MetadataIndex(name, torch.Size(piece.offsets)): piece.elements
            for name, pieces in tensors.items()
            for piece in pieces.held
        }

    def create_local_plan(self) -> SavePlan:
        """See `SavePlanner`."""
        items = [_written(name, pieces, piece) for name, pieces in self._tensors.items() for piece in pieces.held]
        if self.is_coordinator:
            items += [
                WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO, bytes_io_data=BytesIOWriteData(nbytes=0))
                for name in self._numbers
            ]
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """See `SavePlanner`."""
        if write_item.type is WriteItemType.BYTE_IO:
            stored = io.BytesIO()
            torch.save(self._numbers[write_item.index.fqn], stored)
            return stored
        # The number that the global plan gives a piece is no part of what it is.
        return self._elements[dataclasses.replace(write_item.index, index=None)]


class PieceLoadPlanner(DefaultLoadPlanner):
    """Reads pieces of tensors into memory that is there, whatever pieces were written; and numbers."""

    def __init__(self, tensors: Mapping[str, Pieces], numbers: Mapping[str, Number]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tensors = tensors
        self.numbers: dict[str, Any] = dict(numbers)
        """As they were, and when everything is read as they were written."""

    def create_local_plan(self) -> LoadPlan:
        """See `LoadPlanner`. Raises what is wrong with what is asked for."""
        assert self.metadata is not None, "a checkpoint has its metadata"
        kept = self.metadata.state_dict_metadata
        items: list[ReadItem] = []
        for name, pieces in self._tensors.items():
            found = kept.get(name)
            if not isinstance(found, TensorStorageMetadata):
                raise _missing(name, "tensor", kept)
            if tuple(found.size) != pieces.shape:
                kept_shape = tuple(found.size)
                raise ShapeMismatchError(f"{name} is of shape {kept_shape} in the checkpoint, not {pieces.shape}")
            if found.properties.dtype != pieces.dtype:
                raise DTypeError(
                    f"{name} is of {found.properties.dtype} in the checkpoint, not {pieces.dtype}",
                    hints=["load it as it is, then cast it"],
                )
            chunks = [_chunk(piece) for piece in pieces.held]
            items += create_read_items_for_chunk_list(name, found, chunks)
        for name in self.numbers:
            if not isinstance(kept.get(name), BytesStorageMetadata):
                raise _missing(name, "number", kept)
            index, nothing = MetadataIndex(name), torch.Size((0,))
            items.append(ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing))
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """See `LoadPlanner`."""
        self.numbers[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """See `LoadPlanner`."""
        index = read_item.dest_index
        target = next(each for each in self._tensors[index.fqn].held if each.offsets == tuple(index.offset or ()))
        part = target.elements
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        return part


def _written(name: str, pieces: Pieces, piece: Piece) -> WriteItem:
    properties = TensorProperties(dtype=pieces.dtype)
    written = TensorWriteData(_chunk(piece), properties, torch.Size(pieces.shape))
    return WriteItem(MetadataIndex(name, torch.Size(piece.offsets)), WriteItemType.SHARD, tensor_data=written)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offsets), piece.elements.size())


def _missing(name: str, what: str, kept: Mapping[str, object]) -> CheckpointError:
    shown = ", ".join(sorted(kept)[:8])
    return CheckpointError(f"the checkpoint has no {what} {name!r}", hints=[f"it has {shown or 'nothing'}"])
