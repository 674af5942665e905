"""Rows of tables that are looked up, and bags of such rows, with their gradients."""

from __future__ import annotations

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, Wanted, maps
from tessera.ops.algebra import call

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)
"""How torch numbers what becomes of a bag."""


@maps(aten.embedding.default)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return op.embedding(weight, indices)


@maps(aten.embedding_dense_backward.default)
def embedding_dense_backward(g: Tensor, indices: Tensor, rows: int, padding_idx: int, scale_by_freq: bool) -> Tensor:
    given = g.to(accumulator(g.dtype))
    if scale_by_freq:
        given = _over(given, _frequency(indices, rows))
    return _put(_without(padding_idx, given, indices), indices, rows, "embedding").to(g.dtype)


def _put(x: Tensor, places: Tensor, extent: int, what: str) -> Tensor:
    """Sums of the slices of x that have the same place."""
    made: Tensor = call("put_sum", x, places, what=what, axis=0, extent=extent)
    return made


def _frequency(indices: Tensor, rows: int) -> Tensor:
    """How often the index at a place occurs at all."""
    counts = _put(op.broadcast_to(op.full((), 1, "int64"), indices.shape), indices, rows, "embedding")
    return op.take(counts, indices)


def _over(x: Tensor, counts: Tensor) -> Tensor:
    """The slices of x over as many; of none, x's, which are zeros, as they are."""
    return op.div(x, op.unsqueeze(op.maximum(counts, 1), -1).to(x.dtype))


def _without(padding_idx: int, x: Tensor, indices: Tensor) -> Tensor:
    """x with zeros where an index is the padding's, which no negative number is."""
    if padding_idx < 0:
        return x
    return op.where(op.unsqueeze(op.eq(indices, padding_idx), -1), op.zeros((), x.dtype), x)


# -- bags -------------------------------------------------------------------------------------------------------------


def _bags(offsets: Tensor, count: int) -> Tensor:
    """The bag that each of `count` places is in, of bags that begin at offsets; -1, which is none, before the first."""
    return op.sub(op.searchsorted(offsets, op.arange(count).to(offsets.dtype), right=True), 1)


@maps(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    _refuse(mode, weight, indices, offsets)
    count = wanted.shape[0]
    last = call("checked_index", offsets.to("int64"), what="embedding_bag", extent=indices.shape[0] + 1)
    bags = _bags(last, indices.shape[0])
    # What lies behind the last offset of all is in a bag that nobody asks for.
    extent = count + int(include_last_offset)
    taken = op.embedding(weight, indices).to(accumulator(weight.dtype))
    if per_sample_weights is not None:
        taken = op.mul(taken, op.unsqueeze(per_sample_weights.to(taken.dtype), -1))
    total = _put(_without(padding_idx, taken, indices), bags, extent, "embedding_bag")[:count]
    counted = op.ne(indices, padding_idx) if padding_idx >= 0 else op.full(indices.shape, True, "bool")
    sizes = _put(counted.to("int64"), bags, extent, "embedding_bag")[:count]
    if mode == MEAN:
        total = _over(total, sizes)
    places = bags if wanted.shapes[1][0] else op.zeros((0,), "int64")
    return wanted.cast(total, places, sizes, sizes)


def _refuse(mode: int, *operands: Tensor) -> None:
    """Raises Unsupported for maxima, of which torch passes over NaNs behind the first element, and empty operands."""
    if mode == MAX:
        raise Unsupported("maxima of bags")
    if not all(operand.size for operand in operands):
        raise Unsupported("bags without elements")


@maps(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    g: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    maxima: Tensor,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if sparse:
        raise Unsupported("sparse gradients")
    if scale_grad_by_freq:  # by torch 2.13, each index by the frequency of another one
        raise Unsupported("gradients of bags scaled by frequency")
    _refuse(mode, g, indices, offsets)
    wide, bags = g.to(accumulator(g.dtype)), _bags(offsets, indices.shape[0])
    if mode == MEAN:
        wide = _over(wide, sizes)
    given = _of_bags(wide, bags)
    if per_sample_weights is not None:
        given = op.mul(given, op.unsqueeze(per_sample_weights.to(given.dtype), -1))
    return _put(_without(padding_idx, given, indices), indices, rows, "embedding_bag").to(g.dtype)


def _of_bags(g: Tensor, bags: Tensor) -> Tensor:
    """The cotangent of the bag that each place is in; zeros where it is in none that has one."""
    taken = op.take(g, op.minimum(bags, g.shape[0] - 1))
    return op.where(op.unsqueeze(op.lt(bags, g.shape[0]), -1), taken, op.zeros((), g.dtype))


@maps(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    g: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    _refuse(mode, g, indices, offsets)
    wide = accumulator(g.dtype)
    product = op.mul(_of_bags(g.to(wide), _bags(offsets, indices.shape[0])), op.embedding(weight, indices).to(wide))
    return op.sum(_without(padding_idx, product, indices), -1).to(g.dtype)
