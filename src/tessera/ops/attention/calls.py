"""Attention as users call it: the scale, which may be left out, negative or a tensor."""

from __future__ import annotations

import math
from typing import Any

from tessera.dtypes import fp32, fp64
from tessera.errors import ArgumentError
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.node import Node
from tessera.ops.algebra import call
from tessera.ops.layout.views import number


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
