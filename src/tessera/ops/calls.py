"""Reductions, row operators, attention, concat as users call them: axes counted from either end, defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import fp32, fp64
from tessera.errors import ArgumentError
from tessera.lazy.leaf import scalar_leaf
from tessera.lazy.node import Node
from tessera.ops.algebra import call
from tessera.ops.views import flag, normalized_axis, number

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


def concat(nodes: Sequence[Node], axis: int) -> Any:
    """Tensors joined along an axis. Raises ArgumentError for none."""
    if not nodes:
        raise ArgumentError("concat of no tensors")
    return call("concat", *nodes, axis=normalized_axis(axis, len(nodes[0].shape)))


def flash_attention(q: Node, k: Node, v: Node, causal: bool, scale: object, mask: Node | None) -> Any:
    """Attention; the scale is an argument of the kernel, whatever number it is, so that no value has code of its own.

    Raises ArgumentError (E_ARGUMENT) for a `causal` that is no bool and a scale that is no number.
    """
    if not isinstance(causal, bool):
        raise ArgumentError(f"flash_attention: causal={causal!r}", hints=["True or False"])
    if scale is None:
        size = q.shape[-1] if q.shape else 1  # read so that a trace knows: another head size is another scale
        scale = 1.0 / math.sqrt(size) if size else 1.0
    # The record takes scales that are not negative: kernels multiply after they took a maximum.
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        q = call("neg", q) if scale < 0 else q
        leaf = scalar_leaf(abs(number(scale, "flash_attention: scale")), fp64 if q.dtype is fp64 else fp32)
        scale = Node((leaf.structure, (leaf,)))
    elif isinstance(scale, Node) and not scale.shape:
        q, scale = call("where", scale < 0, call("neg", q), q), call("abs", scale)  # type: ignore[operator]
    else:
        raise ArgumentError(f"flash_attention: scale={scale!r}", hints=["a number, or None for 1 / sqrt(head size)"])
    return call("flash_attention", *([q, k, v, scale] if mask is None else [q, k, v, scale, mask]), causal=causal)
