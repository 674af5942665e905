"""Layout: views, joins, and tensors with a part replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, adjoint, maps

aten = torch.ops.aten


@maps(aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten.reshape.default)
def view(x: Tensor, shape: Sequence[int], *, wanted: Wanted) -> Tensor:
    return op.reshape(x, wanted.shape)


@maps(aten.permute.default, aten.permute_copy.default)
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    return op.transpose(x, [dim % rank for dim in dims]) if rank else x


@maps(aten.t.default)
def t(x: Tensor) -> Tensor:
    return op.swapaxes(x, 0, 1) if len(x.shape) == 2 else x


@maps(aten.transpose.int)
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    return op.swapaxes(x, first, second) if x.shape else x


@maps(aten.expand.default)
def expand(x: Tensor, shape: Sequence[int], implicit: bool = False, *, wanted: Wanted) -> Tensor:
    return op.broadcast_to(x, wanted.shape)


@maps(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default)
def reshaped(x: Tensor, dim: int | Sequence[int] | None = None, *, wanted: Wanted) -> Tensor:
    return op.reshape(x, wanted.shape)


def _bounds(extent: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The first place and the one past the last, as torch reads negative and large numbers."""
    first, last = 0 if start is None else start, extent if end is None else end
    first, last = (place + extent if place < 0 else place for place in (first, last))
    first = min(max(first, 0), extent)
    return first, min(max(last, first), extent)


def _part(x: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    return x[(*[slice(None)] * dim, slice(start, end, step))]


@maps(aten.slice.Tensor)
def part(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    place = dim % len(x.shape)
    first, last = _bounds(x.shape[place], start, end)
    return x if (first, last, step) == (0, x.shape[place], 1) else _part(x, place, first, last, step)


@maps(aten.narrow_copy.default)
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return part(x, dim, start, start + length + (x.shape[dim] if start < 0 else 0))


@maps(aten.unfold.default)
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.shape:
        return op.broadcast_to(x, (size,))
    place = dim % len(x.shape)
    count = (x.shape[place] - size) // step + 1
    places = op.add(op.reshape(op.mul(op.arange(count), step), (count, 1)), op.arange(size))
    order = [axis for axis in range(len(x.shape) + 1) if axis != place + 1]
    return op.transpose(op.take(x, places, place), [*order, place + 1])


@maps(aten.select.int)
def select(x: Tensor, dim: int, index: int) -> Tensor:
    place = dim % len(x.shape)
    return x[(*[slice(None)] * place, index + x.shape[place] if index < 0 else index)]


@maps(aten.unbind.int, aten.unbind_copy.int)
def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(x, dim, index) for index in range(x.shape[dim]))


@maps(aten.split.Tensor)
def split(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    if size == 0:
        raise Unsupported("parts without elements")
    return op.split(x, size, dim)


@maps(aten.split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    return op.split(x, list(sizes), dim)


@maps(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0, *, wanted: Wanted) -> Tensor:
    # torch passes over tensors of shape (0,), whatever the rank of the others.
    parts = [each for each in tensors if each.shape != (0,)] or tensors[:1]
    return op.concat([each.to(wanted.dtype) for each in parts], dim)


@maps(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0, *, wanted: Wanted) -> Tensor:
    return op.stack([each.to(wanted.dtype) for each in tensors], dim)


def _along_diagonal(x: Tensor, first: int, second: int) -> list[int]:
    """The order of dimensions in which the two come last."""
    rank = len(x.shape)
    pair = [first % rank, second % rank]
    return [dim for dim in range(rank) if dim not in pair] + pair


@maps(aten.diagonal.default)
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return op.diagonal(op.transpose(x, _along_diagonal(x, dim1, dim2)), offset)


@maps(aten.diagonal_scatter.default)
def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    order = _along_diagonal(x, dim1, dim2)
    turned = op.transpose(x, order)
    *batch, rows, columns = turned.shape
    count, least = source.shape[-1], max(-offset, 0)
    # The source as a column, against which its row of the matrix stands.
    padded = op.pad(source.to(x.dtype), [least, rows - least - count])
    row, column = (op.arange(extent) for extent in (rows, columns))
    hit = op.eq(op.sub(column, op.reshape(row, (rows, 1))), offset)
    made = op.where(hit, op.reshape(padded, (*batch, rows, 1)), turned)
    return op.transpose(made, [order.index(dim) for dim in range(len(order))])


def _places(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The order of dimensions in which elements of these strides lie one behind the other; None where they do not."""
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    dense = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != dense:
            return None
        dense *= shape[dim]
    return order


def _memory(x: Tensor, strides: Sequence[int] | None) -> tuple[Tensor, list[int]]:
    """The elements as a row, in the order in which torch has them in memory, and the order of the dimensions."""
    order = None if strides is None or not x.size else _places(x.shape, strides)
    if order is None:
        raise Unsupported("memory with gaps, or a part of it")
    return op.reshape(op.transpose(x, order) if x.shape else x, (-1,)), order


def _numbers(size: Sequence[int], stride: Sequence[int], offset: int, extent: int) -> Tensor:
    """The place in memory of each element. Raises Unsupported for places that are not in it."""
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if 0 in size or min(stride, default=0) < 0 or last >= extent:
        raise Unsupported("no elements, or memory beyond a tensor")
    numbers: Tensor = op.full(size, offset, "int64")
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        numbers = numbers + along(op.arange(count) * step, dim, len(size))
    return numbers


@maps(aten.as_strided.default, aten.as_strided_copy.default, strides=True)
def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None, *, wanted: Wanted
) -> Tensor:
    row, _ = _memory(x, wanted.strides)
    numbers = _numbers(size, stride, offset or 0, len(row))
    order = _places(size, stride)
    if order is None or offset or numbers.size != len(row):
        return op.take(row, numbers)
    apart = op.reshape(row, [size[dim] for dim in order])
    return op.transpose(apart, [order.index(dim) for dim in range(len(order))]) if size else apart


@maps(aten.as_strided_scatter.default, strides=True)
def as_strided_scatter(
    x: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
    *,
    wanted: Wanted,
) -> Tensor:
    row, own = _memory(x, wanted.strides)
    numbers = _numbers(size, stride, offset or 0, len(row))
    given, order = op.reshape(source.to(x.dtype), size), _places(size, stride)
    if order is not None and not offset and numbers.size == len(row):
        made = op.reshape(op.transpose(given, order) if size else given, (-1,))
    else:
        made = op.index_copy(row, 0, op.reshape(numbers, (-1,)), op.reshape(given, (-1,)))
    apart = op.reshape(made, [x.shape[dim] for dim in own])
    return op.transpose(apart, [own.index(dim) for dim in range(len(own))]) if own else apart


@maps(aten.flip.default)
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return op.flip(x, tuple(dims)) if dims else x


@maps(aten.repeat.default)
def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return op.tile(x, repeats)


@maps(aten.constant_pad_nd.default)
def constant_pad_nd(x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    return op.pad(x, list(widths), value=bool(value) if x.dtype.kind == "bool" else value)


def _padded(x: Tensor, widths: Sequence[int], mode: Literal["reflect", "replicate"]) -> Tensor:
    """x with more of itself around it. Where nothing is left of what negative widths cut off, or less than is
    reflected, torch repeats what they have cut off.
    """
    for place in range(len(widths) // 2):
        before, after = widths[2 * place : 2 * place + 2]
        left = x.shape[-1 - place] + min(before, 0) + min(after, 0)
        if left <= (max(before, after, 0) if mode == "reflect" else 0):
            raise Unsupported("a tensor of which nothing is left to pad with")
    return op.pad(x, list(widths), mode=mode)


@maps(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(x: Tensor, widths: Sequence[int]) -> Tensor:
    return _padded(x, widths, "reflect")


@maps(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(x: Tensor, widths: Sequence[int]) -> Tensor:
    if not x.size:
        raise Unsupported("a tensor without elements")
    return _padded(x, widths, "replicate")


def along(numbers: Tensor, dim: int, rank: int) -> Tensor:
    """A row of numbers as a tensor of the rank whose other extents are 1."""
    return op.reshape(numbers, [len(numbers) if axis == dim else 1 for axis in range(rank)])


@maps(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(g: Tensor, x: Tensor, widths: Sequence[int]) -> Tensor:
    return adjoint(lambda image: _padded(image, widths, "reflect"), x.shape, g)


@maps(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(g: Tensor, x: Tensor, widths: Sequence[int]) -> Tensor:
    if not x.size:
        raise Unsupported("a tensor without elements")
    return adjoint(lambda image: _padded(image, widths, "replicate"), x.shape, g)


@maps(aten.tril.default)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return op.tril(x, diagonal)


@maps(aten.triu.default)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return op.triu(x, diagonal)


@maps(aten.slice_scatter.default)
def slice_scatter(
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    wanted: Wanted,
) -> Tensor:
    place = dim % len(x.shape)
    extent = x.shape[place]
    first, last = _bounds(extent, start, end)
    count = len(range(first, last, step))
    middle = op.broadcast_to(source.to(x.dtype), [*x.shape[:place], count, *x.shape[place + 1 :]])
    if step != 1 or (wanted.in_place and count < extent):
        return op.index_copy(x, place, op.arange(first, last, step), middle)
    parts = [_part(x, place, 0, first), middle, _part(x, place, last, extent)]
    kept = [each for each in parts if each.shape[place]]
    return op.concat(kept, place) if len(kept) > 1 else kept[0] if kept else x


@maps(aten.select_scatter.default)
def select_scatter(x: Tensor, source: Tensor, dim: int, index: int, *, wanted: Wanted) -> Tensor:
    place = dim % len(x.shape)
    index = index + x.shape[place] if index < 0 else index
    if wanted.in_place:
        return op.index_copy(x, place, op.arange(index, index + 1), op.unsqueeze(source.to(x.dtype), place))
    hit = along(op.eq(op.arange(x.shape[place]), index), place, len(x.shape))
    return op.where(hit, op.unsqueeze(source.to(x.dtype), place), x)
