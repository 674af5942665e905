"""Normalizations, which also give the statistics that their gradients read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tessera import op
from tessera.dtypes import accumulator
from tessera.handle import Tensor
from tessera.integrations.torch.mapping.table import Wanted, maps
from tessera.lazy.symbols.integers import is_symbolic

aten = torch.ops.aten

LEAST_AREA = 256
"""Elements of a channel from which group norm has statistics of each: fewer are not worth the smaller kernels between
(one thread of Zen 3, 32 channels of 128 x 128 with channels last, silu after: 0.62 ms by rows, 0.45 by channels)."""


def _wide(x: Tensor) -> Tensor:
    """x in the dtype that sums over it are formed in."""
    return x.to(accumulator(x.dtype))


def _statistics(x: Tensor, axes: int | tuple[int, ...], keepdims: bool) -> tuple[Tensor, Tensor]:
    """Mean, and variance over all elements."""
    return op.mean(x, axes, keepdims), op.var(x, axes, 0, keepdims)


@maps(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, normalized: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float, *, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    lead, width = x.shape[: len(x.shape) - len(normalized)], math.prod(normalized)
    rows = op.reshape(x, (*lead, width))
    scale, shift = (None if each is None else op.reshape(each, (width,)) for each in (weight, bias))
    result = op.reshape(op.layer_norm(rows, scale, shift, eps), x.shape)
    if wanted.used == {0}:  # in inference: each operator costs time where shapes are new
        return wanted.cast(result, None, None)
    mean, variance = _statistics(_wide(rows), -1, True)
    tail = (*lead, *(1,) * len(normalized))
    return wanted.cast(result, op.reshape(mean, tail), op.reshape(op.rsqrt(variance + eps), tail))


@maps(aten.native_group_norm.default)
def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
    *,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    if not is_symbolic(area) and area >= LEAST_AREA:
        return wanted.cast(*_by_channels(x, weight, bias, groups, eps))
    rows = op.reshape(_wide(x), (count, groups, channels // groups * area))
    result = op.reshape(op.layer_norm(rows, None, None, eps), x.shape)
    if wanted.used == {0}:
        return wanted.cast(_affine(result, weight, bias), None, None)
    mean, variance = _statistics(rows, -1, False)
    return wanted.cast(_affine(result, weight, bias), mean, op.rsqrt(variance + eps))


def _by_channels(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, mean and 1 / sqrt(var + eps) of group norm by way of each channel's mean and variance, which kernels
    find in whatever order the image lies; channels of a group then share theirs, and the image is scaled and shifted.

    A group's variance is the mean of its channels' variances plus the variance of their means.
    """
    count, channels, *sides = x.shape
    axes, apart = tuple(range(2, len(x.shape))), (count, groups, channels // groups)
    one = (count, channels, *(1,) * len(sides))
    wide = _wide(x)
    means = op.mean(wide, axes)
    spreads = op.mean(op.square(wide - op.reshape(means, one)), axes)
    means, spreads = op.reshape(means, apart), op.reshape(spreads, apart)
    mean = op.mean(means, -1, True)
    rstd = op.rsqrt(op.mean(spreads + op.square(means - mean), -1, True) + eps)
    scale = op.reshape(op.broadcast_to(rstd, apart), (count, channels))
    scale = scale if weight is None else scale * weight
    shift = op.reshape(op.broadcast_to(-mean, apart), (count, channels)) * scale
    shift = shift if bias is None else shift + bias
    result = wide * op.reshape(scale, one) + op.reshape(shift, one)
    return result, op.reshape(mean, (count, groups)), op.reshape(rstd, (count, groups))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x times a weight plus a bias of each channel, the second dimension."""
    tail = (x.shape[1], *(1,) * (len(x.shape) - 2))
    if weight is not None:
        x = x * op.reshape(weight, tail)
    return x if bias is None else x + op.reshape(bias, tail)


@maps(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    *,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    result = op.batch_norm(x, mean, var, weight, bias, eps)
    return wanted.cast(result, *(op.zeros(shape) for shape in wanted.shapes[1:]))


@maps(aten._native_batch_norm_legit.no_stats)
def batch_norm_of_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    return wanted.cast(*_by_batch(x, weight, bias, eps)[:3])


@maps(aten._native_batch_norm_legit_functional.default)
def batch_norm_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    if not training:
        result = op.batch_norm(x, mean, var, weight, bias, eps)
        return wanted.cast(result, *(op.zeros(shape) for shape in wanted.shapes[1:3]), mean, var)
    result, batch_mean, rstd, batch_var = _by_batch(x, weight, bias, eps)
    count = x.size // x.shape[1]
    unbiased = batch_var * (count / (count - 1) if count > 1 else math.nan)
    return wanted.cast(
        result,
        batch_mean,
        rstd,
        batch_mean * momentum + mean * (1 - momentum),
        unbiased * momentum + var * (1 - momentum),
    )


def _by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x normalized by its own statistics; mean, 1 / sqrt(var + eps) and variance of each channel."""
    axes = (0, *range(2, len(x.shape)))
    wide = _wide(x)
    mean, variance = _statistics(wide, axes, True)
    rstd = op.rsqrt(variance + eps)
    channels = (x.shape[1],)
    result = _affine((wide - mean) * rstd, weight, bias)
    return result, op.reshape(mean, channels), op.reshape(rstd, channels), op.reshape(variance, channels)
