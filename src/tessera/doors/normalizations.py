"""Normalizations along an axis: each is one kernel, whose passes share what they read."""

from __future__ import annotations

from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import node, on
from tessera.handle import Tensor
from tessera.ops.rows import calls
from tessera.runtime.streams.stream import Stream


def softmax(x: object, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return on(calls.softmax("softmax", node(x), along(axis, dim, -1)), stream)


def log_softmax(x: object, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """x - log(sum(exp(x))) along an axis."""
    return on(calls.softmax("log_softmax", node(x), along(axis, dim, -1)), stream)


def layer_norm(
    x: object, weight: object = None, bias: object = None, eps: float = 1e-5, *, stream: Stream | None = None
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias along the last dimension; weight and bias have its extent."""
    scale, shift = (None if parameter is None else node(parameter) for parameter in (weight, bias))
    return on(calls.layer_norm(node(x), scale, shift, eps), stream)


def rms_norm(x: object, weight: object = None, eps: float | None = 1e-6, *, stream: Stream | None = None) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight along the last dimension; `eps=None` is the dtype's machine epsilon."""
    return on(calls.rms_norm(node(x), None if weight is None else node(weight), eps), stream)
