"""Losses of classes, taken apart so that kernels need no matrix beside the scores: a class's score is looked up by
comparing numbers of classes, which fuses with the sums over them, and a gradient is what the same comparison chooses.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype

from tessera.integrations.torch.graphs.operators import checked_targets

NONE, MEAN, SUM = range(3)
"""How torch numbers what becomes of the losses."""


def nll_loss_forward(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss of logarithms of probabilities [N, C, ...] or [C], and the sum of the targets' weights."""
    axis = _class_axis(scores)
    wide = scores.to(get_computation_dtype(scores.dtype))
    labels = checked_targets(target, scores.shape[axis], ignore_index)
    hit, counts = _hits(labels, scores, axis), labels != ignore_index
    factors = None if weight is None else _along_classes(weight.to(wide.dtype), scores, axis)
    weighted = wide if factors is None else wide * factors
    zero = wide.new_zeros(())
    losses = torch.where(counts, -torch.where(hit, weighted, zero).sum(axis), zero)
    if reduction == NONE and scores.dim() > 1:
        return losses.to(scores.dtype), scores.new_zeros(())
    shares = counts.to(wide.dtype)
    if factors is not None:
        shares = torch.where(counts, torch.where(hit, factors, zero).sum(axis), zero)
    total = shares.sum()
    if reduction != NONE:
        losses = losses.sum() / total if reduction == MEAN else losses.sum()
    return losses.to(scores.dtype), total.to(scores.dtype)


def nll_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient by the logarithms: at each target the loss's own, and 0 elsewhere."""
    axis = _class_axis(scores)
    labels = target.reshape(scores.shape[:axis] + scores.shape[axis + 1 :])
    hit = _hits(labels, scores, axis) & (labels != ignore_index).unsqueeze(axis)
    each = -(grad / total_weight if reduction == MEAN else grad)
    if each.dim():
        each = each.reshape(labels.shape).unsqueeze(axis)
    if weight is not None:
        each = each * _along_classes(weight, scores, axis)
    return torch.where(hit, each, scores.new_zeros(())).to(scores.dtype)


def _class_axis(scores: Tensor) -> int:
    return 0 if scores.dim() < 2 else 1


def _along_classes(weight: Tensor, scores: Tensor, axis: int) -> Tensor:
    return weight.reshape(-1, *[1] * (scores.dim() - axis - 1))


def _hits(labels: Tensor, scores: Tensor, axis: int) -> Tensor:
    """Whether a class is its target, in the shape of the scores. Compared in 32 bits, as vectors hold
    as many of them as floats.
    """
    classes = torch.arange(scores.shape[axis], dtype=torch.int32, device=scores.device)
    labels = labels.reshape(scores.shape[:axis] + scores.shape[axis + 1 :]).to(torch.int32)
    return labels.unsqueeze(axis) == _along_classes(classes, scores, axis)
