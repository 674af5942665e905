"""Attention as users call it: the scale, which may be left out, negative or a tensor."""

from __future__ import annotations

import functools
import math
from typing import Any

from tessera.dtypes import DType, accumulator, bool_, fp32, fp64
from tessera.errors import ArgumentError
from tessera.lazy.devices import CPU, is_cpu_memory
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.node import Node, leaf_node
from tessera.ops.algebra import call, literal
from tessera.ops.attention.traced import Function, checked_mask, checked_score, placeholder, positions, scoring_of
from tessera.ops.layout.views import number

_LEAST_CAP = 1e-30


def flash_attention(
    q: Node,
    k: Node,
    v: Node,
    causal: bool,
    scale: object,
    mask: Node | None,
    score_mod: Function | None = None,
    mask_mod: Function | None = None,
) -> Any:
    """Attention; the scale is an argument of the kernel, whatever number it is, so that no value has code of its own.

    Raises ArgumentError (E_ARGUMENT) for a `causal` that is no bool, a scale that is no number, and functions that do
    not make scores of scores; ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError (E_DTYPE).
    """
    if not isinstance(causal, bool):
        raise ArgumentError(f"flash_attention: causal={causal!r}", hints=["True or False"])
    q, factor = scaled(q, scale)
    if score_mod is not None or mask_mod is not None:
        return _scored(q, k, v, factor, causal, mask, score_mod, mask_mod)
    return call("flash_attention", *([q, k, v, factor] if mask is None else [q, k, v, factor, mask]), causal=causal)


def paged_attention(
    q: Node,
    key_pages: Node,
    value_pages: Node,
    table: Node,
    lengths: Node,
    *,
    causal: bool,
    scale: object,
    soft_cap: object,
    window: object,
) -> Any:
    """Attention to pages; one query of each sequence may come without its dimension. Tables and lengths are checked
    where they lie on a CPU: elsewhere to read them would be to wait for the device.

    Raises as `flash_attention`, and ArgumentError for a cap or a window that is not positive; when it is evaluated
    IndexRangeError (E_INDEX).
    """
    name = "paged_attention"
    if not isinstance(causal, bool):
        raise ArgumentError(f"{name}: causal={causal!r}", hints=["True or False"])
    cap = 0.0 if soft_cap is None else float(number(soft_cap, f"{name}: soft_cap"))
    if soft_cap is not None and not _LEAST_CAP <= cap <= 1 / _LEAST_CAP:  # beyond it is 0 or infinite in fp32
        raise ArgumentError(
            f"{name}: soft_cap={soft_cap!r}",
            hints=[f"a positive number from {_LEAST_CAP} to {1 / _LEAST_CAP}, or None for no cap"],
        )
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError(f"{name}: window={window!r}", hints=["a positive number of keys, or None for all"])
    alone = len(q.shape) == 3
    q = call("reshape", q, shape=(*q.shape[:2], 1, q.shape[2])) if alone else q
    q, factor = scaled(q, scale)
    named = {
        "causal": causal and not alone and q.shape[-2:-1] != (1,),  # the last query sees all keys
        "soft_cap": cap,
        "window": window or 0,
    }
    found = call(name, q, key_pages, value_pages, factor, table, lengths, **named)  # refuses shapes that do not fit
    if is_cpu_memory(q.structure.device or CPU):
        pages, _, page, _ = key_pages.shape
        table = call("checked_pages", table, lengths, pages=pages, page=page)
        found = call(name, q, key_pages, value_pages, factor, table, lengths, **named)
    return call("reshape", found, shape=(*found.shape[:2], found.shape[3])) if alone else found


def scaled_attention(
    q: Node,
    k: Node,
    v: Node,
    *,
    q_scale: object,
    k_scale: object,
    v_scale: object,
    causal: bool,
    scale: object,
    dtype: DType,
) -> Any:
    """Attention to numbers that stand for others by factors. Those of queries and keys are multiplied into the scale.

    Raises as `flash_attention`, and ArgumentError for a factor that is no number.
    """
    name = "scaled_attention"
    if not isinstance(causal, bool):
        raise ArgumentError(f"{name}: causal={causal!r}", hints=["True or False"])
    sums = fp64 if q.dtype is fp64 else fp32  # of any dtype: what is no float the record refuses
    whole = 1.0 / math.sqrt(q.shape[-1] or 1) if scale is None and q.shape else scale
    numbers = [whole, q_scale, k_scale]
    tensors = [each for each in numbers if isinstance(each, Node)]
    plain = math.prod(float(number(each, f"{name}: a scale")) for each in numbers if not isinstance(each, Node))
    factor: object = plain
    for tensor in tensors:
        factor = _one_number(name, tensor, sums) * factor
    q, given = scaled(q, factor)
    if isinstance(v_scale, Node):
        values = _one_number(name, v_scale, sums)
    else:
        leaf = scalar_leaf(number(v_scale, f"{name}: v_scale"), sums)
        values = Node((leaf.structure, (leaf,)))
    return call(name, q, k, v, given, values, causal=causal, dtype=dtype)


def _one_number(name: str, factor: Node, dtype: DType) -> Any:
    """A factor in the dtype of sums. Raises ArgumentError for one with dimensions."""
    if factor.shape:
        raise ArgumentError(f"{name}: a factor of shape {factor.shape}", hints=["one number for a whole tensor"])
    return call("cast", factor, dtype=dtype)


def scaled(q: Node, scale: object) -> tuple[Node, Node]:
    """Queries and scale as records take them: turned around where the scale is negative. Raises ArgumentError."""
    if scale is None:
        size = q.shape[-1] if q.shape else 1  # read so that a trace knows: another head size is another scale
        scale = 1.0 / math.sqrt(size) if size else 1.0
    # The record takes scales that are not negative: kernels multiply after they took a maximum.
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        q = call("neg", q) if scale < 0 else q
        leaf = scalar_leaf(abs(number(scale, "flash_attention: scale")), fp64 if q.dtype is fp64 else fp32)
        return q, Node((leaf.structure, (leaf,)))
    if isinstance(scale, Node) and not scale.shape:
        below = scale < 0  # type: ignore[operator]
        # Not `abs`, whose gradient at 0 is 0, where that of attention by its scale is not.
        return call("where", below, call("neg", q), q), call("where", below, call("neg", scale), scale)
    raise ArgumentError(f"flash_attention: scale={scale!r}", hints=["a number, or None for 1 / sqrt(head size)"])


def _scored(
    q: Node,
    k: Node,
    v: Node,
    scale: Node,
    causal: bool,
    mask: Node | None,
    score_mod: Function | None,
    mask_mod: Function | None,
) -> Any:
    """Attention whose scores, or whose keys that are seen, functions say."""
    plain = call("flash_attention", q, k, v, scale, causal=False)  # whose shape and dtype are checked
    shape = (*plain.shape[:-1], k.shape[-2])
    leaf = placeholder(shape, accumulator(plain.dtype), plain.structure.device)
    at = positions(shape)
    score = leaf_node(leaf)
    if score_mod is not None:
        score = checked_score(score_mod(score, *at))
    seen = [] if mask_mod is None else [checked_mask(mask_mod(*at))]
    seen += [at[-1] <= at[-2] + (shape[-1] - shape[-2])] if causal else []
    if mask is not None and mask.dtype is not bool_:
        score = call("add", score, mask)
    elif mask is not None:
        seen.append(mask)
    if seen:
        visible = functools.reduce(lambda a, b: call("logical_and", a, b), seen)
        score = call("where", visible, score, literal(-math.inf, leaf.dtype))
    steps, extras = scoring_of(score, leaf)
    return call("scored_attention", q, k, v, scale, *extras, scores=steps)
