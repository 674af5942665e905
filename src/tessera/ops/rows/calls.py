"""Reductions and normalizations as users call them: axes counted from either end, defaults filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.errors import ArgumentError
from tessera.lazy.node import Node
from tessera.ops.algebra import call
from tessera.ops.layout.views import flag, normalized_axis, number

Axis: TypeAlias = int | Sequence[int] | None


def reduction(name: str, node: Node, axis: Axis, keepdims: bool) -> Any:
    """A reduction along one axis, several, or all (None). Raises ArgumentError for axes out of range or named twice."""
    return call(name, node, axes=_axes(axis, len(node.shape)), keepdims=flag(keepdims, "keepdims"))


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = {normalized_axis(entry, rank) for entry in given}
    if len(axes) != len(given):
        raise ArgumentError(f"axes {given} name a dimension twice")
    # A tensor without dimensions takes axis 0 and -1, and has none to reduce.
    return tuple(sorted(axes)) if rank else ()


def softmax(name: str, node: Node, axis: int) -> Any:
    """`softmax` or `log_softmax` along an axis; a tensor without dimensions is one row of one element."""
    if not node.shape:
        return call("reshape", call(name, call("reshape", node, shape=(1,)), axis=0), shape=())
    return call(name, node, axis=normalized_axis(axis, len(node.shape)))


def layer_norm(node: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    """Normalization of the last dimension. The record has no bias without weight: that sum is an operator of its
    own.
    """
    if weight is None:
        normal = call("layer_norm", node, eps=number(eps, "eps"))
        return normal if bias is None else call("cast", call("add", normal, bias), dtype=node.dtype)
    return call(
        "layer_norm", *(operand for operand in (node, weight, bias) if operand is not None), eps=number(eps, "eps")
    )


def rms_norm(node: Node, weight: Node | None, eps: float | None) -> Any:
    """Root-mean-square normalization; `eps=None` is the dtype's machine epsilon, as in torch."""
    default = torch.finfo(node.dtype.torch).eps if node.dtype.kind == "float" else 0.0
    epsilon = default if eps is None else eps
    return call("rms_norm", *([node] if weight is None else [node, weight]), eps=number(epsilon, "eps"))
