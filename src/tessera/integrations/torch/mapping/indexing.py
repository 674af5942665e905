"""Places given by tensors of indices. torch's negative indices count from the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch

from tessera import op
from tessera.dtypes import uint8
from tessera.handle import Tensor
from tessera.integrations.torch.graphs.operators import checked_targets
from tessera.integrations.torch.mapping.shapes import along
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.algebra import call

aten = torch.ops.aten


@maps(checked_targets)
def checked_targets_of(target: Tensor, classes: int, ignored: int) -> Tensor:
    made: Tensor = call("checked_index", target.to("int64"), what="cross_entropy", extent=classes, ignored=ignored)
    return made.to(target.dtype)


def _wrapped(index: Tensor, extent: int) -> Tensor:
    return op.where(op.lt(index, 0), index + extent, index)


def _order(rank: int, indices: Sequence[Tensor | None]) -> list[int]:
    """The dimensions with the indexed ones side by side: first, as torch has them, where others lie between them."""
    places = [place for place, index in enumerate(indices) if index is not None]
    if not places or places == list(range(places[0], places[0] + len(places))):
        return list(range(rank))
    return [*places, *(dim for dim in range(rank) if dim not in places)]


def _flat(shape: Sequence[int], indices: Sequence[Tensor | None], order: Sequence[int]) -> tuple[int, int, Tensor]:
    """The first of the indexed dimensions, their number, and one index into all of them, as if they were one; of a
    tensor of this shape, whose dimensions were in this order before.
    """
    indices = [indices[dim] if dim < len(indices) else None for dim in order]
    places = [place for place, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if not given or any(index.dtype.kind != "int" or index.dtype is uint8 for index in given):  # bytes are a mask
        raise Unsupported("an index of truth values")
    flat = _wrapped(given[0], shape[places[0]])
    if len(places) > 1:  # a place out of range in one dimension would be in range of all
        flat = _checked(flat, shape[places[0]])
    for place, index in zip(places[1:], given[1:], strict=True):
        flat = flat * shape[place] + _checked(_wrapped(index, shape[place]), shape[place])
    return places[0], len(places), flat


def _checked(index: Tensor, extent: int) -> Tensor:
    made: Tensor = call("checked_index", index.to("int64"), what="index", extent=extent)
    return made


@maps(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    order = _order(len(x.shape), indices)
    x = _turned(x, order)
    first, count, flat = _flat(x.shape, indices, order)
    if count > 1:
        _refuse_empty(x)
    merged = math.prod(x.shape[first : first + count])
    table = op.reshape(x, (*x.shape[:first], merged, *x.shape[first + count :]))
    return op.take(table, flat, first)


def _refuse_empty(x: Tensor) -> None:
    if not x.size:
        raise Unsupported("indices into a tensor without elements")


@maps(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    _refuse_empty(x)
    mask = indices[0]
    if mask is not None and len(indices) == 1 and mask.dtype.kind == "bool" and values.size == 1:
        inner = op.reshape(mask, (*mask.shape, *(1,) * (len(x.shape) - len(mask.shape))))
        one = op.reshape(values, ())
        return op.where(inner, op.add(x, one) if accumulate else one, x)
    turned = _order(len(x.shape), indices)
    x = _turned(x, turned)
    first, count, flat = _flat(x.shape, indices, turned)
    lead, rest = x.shape[:first], x.shape[first + count :]
    added = op.broadcast_to(values, (*lead, *flat.shape, *rest))
    if not accumulate:
        merged = op.reshape(x, (*lead, math.prod(x.shape[first : first + count]), *rest))
        made: Tensor = call("put", merged, flat, added, what="index_put", axis=first)
        return _back(op.reshape(made, x.shape), turned)
    # The indexed dimensions go first, where sums are put, and back.
    rank, kept = first + len(flat.shape), len(rest)
    order = (*range(first, rank), *range(first), *range(rank, rank + kept))
    sums: Tensor = call(
        "put_sum",
        op.transpose(added, order),
        flat,
        what="index_put",
        axis=0,
        extent=math.prod(x.shape[first : first + count]),
    )
    back = op.transpose(sums, (*range(1, first + 1), 0, *range(first + 1, first + 1 + kept)))
    return _back(op.add(x, op.reshape(back, x.shape)), turned)


def _back(x: Tensor, order: Sequence[int]) -> Tensor:
    """The dimensions as they were before they were put in this order."""
    return _turned(x, [order.index(dim) for dim in range(len(order))])


def _turned(x: Tensor, order: Sequence[int]) -> Tensor:
    """The dimensions in this order; x itself where they are, which may then be written in place."""
    return x if list(order) == list(range(len(order))) else op.transpose(x, order)


def _row(x: Tensor) -> Tensor:
    """x with a dimension at least."""
    return x if x.shape else op.reshape(x, (1,))


@maps(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    made = index_put(op.reshape(x, (-1,)), [op.reshape(index, (-1,))], op.reshape(source, (-1,)), accumulate)
    return op.reshape(made, x.shape)


Source: TypeAlias = Tensor | bool | int | float


def _source(x: Tensor, index: Tensor, source: Source) -> Tensor:
    """What is put at places: elements, or one number at all."""
    return _row(source if isinstance(source, Tensor) else op.broadcast_to(op.full((), source, x.dtype), index.shape))


@maps(aten.scatter.src, aten.scatter.value)
def scatter(x: Tensor, dim: int, index: Tensor, source: Source) -> Tensor:
    return op.reshape(op.scatter(_row(x), dim, _row(index), _source(x, index, source)), x.shape)


@maps(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_onto(x: Tensor, dim: int, index: Tensor, source: Source, *, reduce: str) -> Tensor:
    how = "sum" if reduce == "add" else "prod"
    return op.reshape(op.scatter_reduce(_row(x), dim, _row(index), _source(x, index, source), how), x.shape)


@maps(aten.scatter_reduce.two)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    made = op.scatter_reduce(_row(x), dim, _row(index), _row(source), reduce, include_self)
    return op.reshape(made, x.shape)


@maps(aten.index_reduce.default)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    given = _row(source)
    place = dim % len(given.shape)
    everywhere = op.broadcast_to(along(_row(index), place, len(given.shape)), given.shape)
    return scatter_reduce(x, dim, everywhere, given, reduce, include_self=include_self)


@maps(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor, *, wanted: Wanted) -> Tensor:
    if not source.size:
        raise Unsupported("a source without elements")
    shape = wanted.shape
    hit, order = _numbered(mask, shape)  # torch refuses a source of fewer elements, and so does `take`
    taken = op.take(op.reshape(source, (-1,)), order)
    return op.reshape(op.where(hit, taken, op.reshape(op.broadcast_to(x, shape), (-1,))), shape)


def _numbered(mask: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A mask as a row, and the number of each of its places among them; elsewhere 0."""
    hit = op.reshape(op.broadcast_to(mask, shape), (-1,))
    return hit, op.where(hit, op.sub(op.cumsum(hit.to("int64"), 0), 1), 0)


@maps(aten.masked_scatter_backward.default)
def masked_scatter_backward(g: Tensor, mask: Tensor, shape: Sequence[int]) -> Tensor:
    if not math.prod(shape) or not g.size:
        raise Unsupported("a source without elements")
    hit, order = _numbered(mask, g.shape)
    arriving = op.where(hit, op.reshape(g, (-1,)), op.zeros((), g.dtype))
    return op.reshape(op.scatter_add(op.zeros((math.prod(shape),), g.dtype), 0, order, arriving), shape)


@maps(aten.gather.default)
def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return op.reshape(op.gather(_row(x), dim, _row(index)), index.shape)


@maps(aten.index_select.default)
def index_select(x: Tensor, dim: int, index: Tensor, *, wanted: Wanted) -> Tensor:
    return op.reshape(op.index_select(_row(x), dim, _row(index)), wanted.shape)


@maps(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return op.reshape(op.scatter_add(_row(x), dim, _row(index), _row(source)), x.shape)
