"""Distances between rows, in any norm, and their gradients."""

from __future__ import annotations

import math

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Unsupported, maps, refuse_symbolic

aten = torch.ops.aten


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """[..., P, R, M]: rows of x [..., P, M] less rows of y [..., R, M], in the dtype that sums are formed in."""
    if not x.size or not y.size or x.shape[:-2] != y.shape[:-2]:
        raise Unsupported("rows of no elements, or of different batches")
    wide = accumulator(x.dtype)
    return op.sub(op.unsqueeze(x.to(wide), -2), op.unsqueeze(y.to(wide), -3))


def _norm(d: Tensor, p: float) -> Tensor:
    size = op.abs(d)
    if p == 0:
        return op.sum(op.ne(d, 0).to(d.dtype), -1)
    if p == 1:
        return op.sum(size, -1)
    if p == 2:
        return op.sqrt(op.sum(op.mul(d, d), -1))
    return op.max(size, -1) if math.isinf(p) else op.pow(op.sum(op.pow(size, p), -1), 1 / p)


def _slopes(d: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of each distance by each difference; 0 where the distance is."""
    size, whole = op.abs(d), op.unsqueeze(distance.to(d.dtype), -1)
    nothing = op.zeros((), d.dtype)
    if p == 0:
        return op.mul(d, 0.0)
    if p == 1:
        return op.sign(d)
    if math.isinf(p):  # looked for again: the distance itself may have been rounded
        return op.where(op.eq(size, op.max(size, -1, True)), op.sign(d), nothing)
    if p == 2:
        return op.where(op.eq(whole, 0), nothing, op.div(d, whole))
    slope = op.mul(op.sign(d), op.pow(op.div(size, whole), p - 1))
    return op.where(op.logical_or(op.eq(whole, 0), op.eq(d, 0)), nothing, slope)


@maps(aten._cdist_forward.default)
def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return _norm(_differences(x, y), p).to(x.dtype)


@maps(aten._cdist_backward.default)
def cdist_backward(g: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    d = _differences(x, y)
    return op.sum(op.mul(op.unsqueeze(g.to(d.dtype), -1), _slopes(d, p, distance)), -2).to(x.dtype)


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    refuse_symbolic(count)
    first, second = torch.triu_indices(count, count, 1)
    return op.tensor(first), op.tensor(second)


def _between(x: Tensor) -> Tensor:
    """[pairs, M]: each row less each later one."""
    if len(x) < 2 or not x.size:
        raise Unsupported("less than two rows, or rows of no elements")
    first, second = (op.take(x.to(accumulator(x.dtype)), places, 0) for places in _pairs(len(x)))
    return op.sub(first, second)


@maps(aten._pdist_forward.default)
def pdist(x: Tensor, p: float = 2) -> Tensor:
    return _norm(_between(x), p).to(x.dtype)


@maps(aten._pdist_backward.default)
def pdist_backward(g: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    d = _between(x)
    each = op.mul(op.unsqueeze(g.to(d.dtype), -1), _slopes(d, p, distance))
    zeros = op.zeros(x.shape, d.dtype)
    found = zeros
    for places, part in zip(_pairs(len(x)), (each, op.neg(each)), strict=True):
        index = op.broadcast_to(op.unsqueeze(places, -1), part.shape)
        found = op.scatter_add(found, 0, index, part)
    return found.to(x.dtype)
