"""The interpreter's memory: windows of tiles over buffers, staged sub-blocks and their layouts, poison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, VectorType
from xdsl.ir import Attribute

from tessera.dtypes import dtype_of
from tessera.errors import IRError
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.tile import operations as tile


def torch_dtype(element: Attribute) -> torch.dtype:
    """The torch dtype of an element type; `IRError` when there is none."""
    name = DTYPE_NAMES.get(element)
    if name is None:
        raise IRError(f"no dtype has the element type {element}")
    return dtype_of(name).torch


def allocate(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory full of poison: NaN, for integers a large negative number, for booleans true."""
    if dtype.is_floating_point:
        return torch.full(tuple(shape), float("nan"), dtype=dtype)
    if dtype == torch.bool:
        return torch.full(tuple(shape), True, dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.full(tuple(shape), limits.min + min(12345, limits.max // 2), dtype=dtype)


@dataclass(frozen=True, slots=True)
class TileRegion:
    """Where a tile lies over a buffer, cut to the buffer's extents.

    `source` has the slice of each buffer dimension; `order` the buffer dimension that each tile dimension walks, or -1;
    `target` the part of the tile that lies inside; `whole` says for each tile dimension whether all of it does.
    """

    shape: tuple[int, ...]
    source: tuple[slice, ...]
    order: tuple[int, ...]
    target: tuple[slice, ...]
    whole: tuple[bool, ...]

    @staticmethod
    def of(
        extents: Sequence[int], indices: Sequence[int], dims: Sequence[int], shape: Sequence[int], steps: Sequence[int]
    ) -> TileRegion:
        """The window of a tile of `shape` at `indices` in a buffer of `extents`; `dims` and `steps` as in
        `tessera.tile.load`.
        """
        walks = {dim: (size, step) for dim, size, step in zip(dims, shape, steps, strict=True) if dim >= 0}
        source, inside = [], []
        for dim, (index, extent) in enumerate(zip(indices, extents, strict=True)):
            size, step = walks.get(dim, (1, 1))
            lower = min(size, max(0, -(index // step)))
            upper = max(lower, min(size, -((index - extent) // step)))
            inside.append((lower, upper))
            first = max(index + lower * step, 0)
            source.append(
                slice(first, first + max(0, (upper - lower - 1) * step + 1) if upper > lower else first, step)
            )
        target, whole = [], []
        for dim, size in zip(dims, shape, strict=True):
            lower, upper = inside[dim] if dim >= 0 else (0, 1)
            target.append(slice(lower, upper))
            whole.append(upper - lower == size)
        return TileRegion(tuple(shape), tuple(source), tuple(dims), tuple(target), tuple(whole))


class TilePlace:
    """How a load or a store finds its tile: what is the same every time. `shape`, `dims` and `steps` are those of
    `tessera.tile.load`; the buffer has `rank` dimensions.
    """

    def __init__(self, rank: int, dims: Sequence[int], shape: Sequence[int], steps: Sequence[int]) -> None:
        self.dims, self.shape, self.steps = tuple(dims), tuple(shape), tuple(steps)
        reaches = {dim: (size - 1) * step for dim, size, step in zip(dims, shape, steps, strict=True)}
        self._reaches = tuple(reaches.get(dim, 0) for dim in range(rank))
        self._walks = tuple(zip(self.dims, self.steps, strict=True))

    def inside(self, buffer: torch.Tensor, indices: Sequence[int]) -> torch.Tensor | None:
        """The view of the tile at `indices`, or None unless all of it lies inside the buffer's extents."""
        offset, strides = buffer.storage_offset(), buffer.stride()
        for index, reach, extent, stride in zip(indices, self._reaches, buffer.shape, strides, strict=True):
            if index < 0 or index + reach >= extent:
                return None
            offset += index * stride
        return buffer.as_strided(
            self.shape, [strides[dim] * step if dim >= 0 else 0 for dim, step in self._walks], offset
        )


def _inside(buffer: torch.Tensor, window: TileRegion) -> torch.Tensor | None:
    """The view of what lies inside, or None when nothing does."""
    part = buffer[window.source]
    if part.numel() == 0:
        return None
    walked = [dim for dim in window.order if dim >= 0]
    fixed = [dim for dim in range(buffer.dim()) if dim not in walked]
    view = part.permute([*walked, *fixed]).flatten(len(walked)).squeeze(-1) if fixed else part.permute(walked)
    for position, dim in enumerate(window.order):
        if dim < 0:
            view = view.unsqueeze(position)
    return view


def read_tile(buffer: torch.Tensor, window: TileRegion, fill: Attribute | None, poisoned: bool) -> torch.Tensor:
    """The tile under `window`; outside the buffer it has `fill` (default 0), or poison where any value is allowed."""
    if poisoned:
        result = allocate(window.shape, buffer.dtype)
    else:
        value = fill.value.data if isinstance(fill, (FloatAttr, IntegerAttr)) else 0
        result = torch.full(window.shape, value, dtype=buffer.dtype)
    view = _inside(buffer, window)
    if view is not None:
        result[window.target] = view
    return result


def write_tile(buffer: torch.Tensor, window: TileRegion, value: torch.Tensor) -> None:
    """Writes what lies inside; the rest of the tile is dropped."""
    view = _inside(buffer, window)
    if view is not None:
        view.copy_(value[window.target])


def assemble_stage(
    op: tile.StageOp, extents: Sequence[int], tile_at: Callable[[int, int], torch.Tensor]
) -> torch.Tensor:
    """The staged copy of a sub-block of `extents`, rounded up to whole tiles, in the stage's layout."""
    staged = op.staged.type
    last = op.body.block.last_op
    assert isinstance(last, tile.YieldOp)
    kind = last.values[0].type
    assert isinstance(kind, VectorType)
    rows, columns = kind.get_shape()
    padded = [-(-extent // size) * size for extent, size in zip(extents, (rows, columns), strict=True)]
    block = allocate(padded, torch_dtype(staged.element_type))
    for row in range(0, padded[0], rows):
        for column in range(0, padded[1], columns):
            block[row : row + rows, column : column + columns] = tile_at(row, column)
    return _LAYOUTS[op.layout.data](block, staged.get_shape())


def _pad(block: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`block` with poison up to multiples of `rows` and `columns`."""
    padded = [-(-extent // size) * size for extent, size in zip(block.shape, (rows, columns), strict=True)]
    result = allocate(padded, block.dtype)
    result[: block.shape[0], : block.shape[1]] = block
    return result


def _rows(block: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return block


def _panels(block: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    width = shape[2]
    padded = _pad(block, 1, width)
    return padded.reshape(padded.shape[0], padded.shape[1] // width, width).permute(1, 0, 2)


def _row_panels(block: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return _panels(block.T, shape)


def _panels_vnni(block: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    width = shape[2]
    padded = _pad(block, 2, width)
    return padded.reshape(padded.shape[0] // 2, 2, padded.shape[1] // width, width).permute(2, 0, 3, 1)


_LAYOUTS: dict[str, Callable[[torch.Tensor, Sequence[int]], torch.Tensor]] = {
    "rows": _rows,
    "panels": _panels,
    "row_panels": _row_panels,
    "panels_vnni": _panels_vnni,
}
