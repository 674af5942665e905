"""Normalizations along an axis: each is one kernel, whose passes share what they read."""

from __future__ import annotations

from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import node, on
from tessera.handle import Tensor
from tessera.ops.rows import calls
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def softmax(x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.softmax(op.tensor([[0.0, 0.0], [1000.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    return on(calls.softmax("softmax", node(x), along(axis, dim, -1)), stream)


def log_softmax(x: ArrayLike, axis: int = -1, *, dim: int | None = None, stream: Stream | None = None) -> Tensor:
    """x - log(sum(exp(x))) along an axis.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE). Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> f"{op.log_softmax(op.tensor([0.0, 0.0]))[0]:.4f}"
    '-0.6931'
    """
    return on(calls.softmax("log_softmax", node(x), along(axis, dim, -1)), stream)


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias along the last dimension; weight and bias have its extent.

    Shapes: x [..., n]; weight and bias [n]; the result has x's. Dtypes: floats and 8-bit floats; not integers, bools
    and complex (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.layer_norm(op.tensor([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    scale, shift = (None if parameter is None else node(parameter) for parameter in (weight, bias))
    return on(calls.layer_norm(node(x), scale, shift, eps), stream)


def rms_norm(
    x: ArrayLike, weight: ArrayLike | None = None, eps: float | None = 1e-6, *, stream: Stream | None = None
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight along the last dimension; `eps=None` is the dtype's machine epsilon.

    Shapes: x [..., n]; weight [n]; the result has x's. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH).

    >>> op.rms_norm(op.tensor([[3.0, -3.0]]), op.tensor([1.0, 2.0]), eps=0.0).tolist()
    [[1.0, -2.0]]
    """
    return on(calls.rms_norm(node(x), None if weight is None else node(weight), eps), stream)
