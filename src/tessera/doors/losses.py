"""Losses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tessera import dtypes
from tessera.doors.calls.nodes import call, node, on
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, normalized_axis
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    axis: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """-log softmax(logits)[target], one kernel along the classes: no softmax and no one-hot tensor goes through memory.

    The classes lie along `axis` of `logits`: 1 by default, 0 of one dimension (as in torch); `targets` are integers of
    the other dimensions. `weight` has a factor for each class; targets equal to `ignore_index` count nothing. With
    `label_smoothing` e the target's share is 1 - e, and each class has e / classes. "mean" divides by the sum of the
    targets' weights; of no targets it is NaN. Sums are formed in fp32 (fp64 of fp64) and rounded once; the gradient is
    softmax - one_hot.

    A target out of range is IndexRangeError (E_INDEX) at evaluation. Raises ShapeMismatchError, DTypeError and
    ArgumentError.

    Shapes: logits [N, C, ...] and targets [N, ...] give a number, or [N, ...] of "none". Dtypes: floats and 8-bit
    floats; not integers, bools and complex (E_DTYPE).

    >>> op.cross_entropy(op.tensor([[100.0, 0.0]]), op.tensor([0])).tolist()
    0.0
    """
    scores = node(logits)
    place = _class_axis(scores, axis)
    labels = node(targets)
    _refuse(scores, labels, place, label_smoothing, reduction)
    count = scores.shape[place]
    ignored = integer(ignore_index, "ignore_index")
    checked = call("checked_index", labels, what="cross_entropy", extent=count, ignored=ignored)
    wide = scores if scores.dtype is dtypes.fp64 else scores.to(dtypes.fp32)
    factors = None if weight is None else _factors(node(weight), wide, place)
    column = views.reshape(checked, (*checked.shape[:place], 1, *checked.shape[place:]))
    hit = column == call("iota", shape=_along(count, place, len(scores.shape)))
    total = call("logsumexp", wide, axes=(place,))
    losses = total - _chosen(hit, wide, place)
    share = None if factors is None else _chosen(hit, factors, place)
    losses = losses if share is None else losses * share
    if label_smoothing:
        weighted = _missing(wide, total, factors, place)
        losses = losses * (1.0 - label_smoothing) + weighted * (label_smoothing / max(count, 1))
    counts = checked != ignored
    return on(_reduced(losses, share, counts, reduction).to(scores.dtype), stream)


def _class_axis(scores: Tensor, axis: int | None) -> int:
    rank = len(scores.shape)
    if not rank:
        raise ShapeMismatchError("cross_entropy of logits without dimensions", hints=["[..., classes]"])
    return min(1, rank - 1) if axis is None else normalized_axis(axis, rank)


def _refuse(scores: Tensor, labels: Tensor, place: int, smoothing: object, reduction: str) -> None:
    if scores.dtype.kind != "float":
        raise DTypeError(f"cross_entropy of {scores.dtype}: logits are floats", hints=["cast to fp32"])
    if labels.dtype.kind != "int":
        raise DTypeError(f"cross_entropy: targets of {labels.dtype}", hints=["targets are integers: classes"])
    wanted = (*scores.shape[:place], *scores.shape[place + 1 :])
    if labels.shape != wanted:
        raise ShapeMismatchError(
            f"cross_entropy: targets of shape {labels.shape} for logits of shape {scores.shape}",
            hints=[f"classes lie along axis {place}, so targets have shape {wanted}", "axis= names another one"],
        )
    if type(smoothing) not in (int, float) or not 0 <= smoothing <= 1:  # type: ignore[operator]
        raise ArgumentError(f"cross_entropy: label_smoothing={smoothing!r}", hints=["a number from 0 to 1"])
    if not views.is_one_of(reduction, ("mean", "sum", "none")):
        raise ArgumentError(f"cross_entropy: reduction={reduction!r}", hints=['"mean", "sum" or "none"'])


def _along(count: int, place: int, rank: int) -> tuple[int, ...]:
    return (*[1] * place, count, *[1] * (rank - place - 1))


def _factors(weight: Tensor, wide: Tensor, place: int) -> Tensor:
    """The weights of the classes, over the dimensions of the logits."""
    count = wide.shape[place]
    if weight.shape != (count,) or weight.dtype.kind != "float":
        raise ShapeMismatchError(
            f"cross_entropy: weight of shape {weight.shape} and {weight.dtype} for {count} classes",
            hints=[f"floats of shape ({count},)"],
        )
    made: Tensor = views.reshape(weight.to(wide.dtype), _along(count, place, len(wide.shape)))
    return made


def _chosen(hit: Tensor, values: Tensor, place: int) -> Tensor:
    """The value of each target's class: exact, as all other addends are 0."""
    return call("sum", call("where", hit, values, 0.0), axes=(place,))


def _missing(wide: Tensor, total: Tensor, factors: Tensor | None, place: int) -> Tensor:
    """The sum over classes of weight times -log softmax."""
    if factors is None:
        return call("sub", total * float(wide.shape[place]), call("sum", wide, axes=(place,)))
    whole = call("sum", factors.broadcast_to(wide.shape), axes=(place,))
    return call("sub", total * whole, call("sum", wide * factors, axes=(place,)))


def _reduced(losses: Tensor, share: Tensor | None, counts: Tensor, reduction: str) -> Tensor:
    kept = call("where", counts, losses, 0.0)
    if reduction == "none":
        return kept
    if reduction == "sum":
        return kept.sum()
    shares = counts.to(losses.dtype) if share is None else call("where", counts, share, 0.0)
    return call("div", kept.sum(), shares.sum())
