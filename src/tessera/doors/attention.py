"""Attention: `op.flash_attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tessera.doors.calls.nodes import node, on
from tessera.handle import Tensor
from tessera.ops.attention import calls
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike

ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flash_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """softmax(scale * q @ k^T + mask) @ v, formed without a matrix of scores in memory.

    `q` is [..., heads, len_q, d], `k` [..., heads_kv, len_k, d] and `v` [..., heads_kv, len_k, d_v], of one dtype;
    heads are a multiple of heads_kv, batch dimensions broadcast, and 2-D operands are one head. The result is
    [..., heads, len_q, d_v] in that dtype; scores, softmax and sums are formed in fp32 (fp64 of fp64).

    `scale` is 1 / sqrt(d) by default. `mask` broadcasts to [..., heads, len_q, len_k]: a bool one says which keys a
    query may attend to, a float one is added to the scores. With `causal` query i sees the keys
    j <= i + len_k - len_q, so that the last query sees all. A query without any key, or whose scores are all -inf,
    gives 0. Whether a value of a hidden key that is not finite shows is undefined.

    `score_mod(score, batch, head, query, key)` gives the score that the softmax sees in place of a scaled one, and
    `mask_mod(batch, head, query, key)` says which keys are seen; blocks of keys that no query sees are skipped. Both
    are called once, with tensors: positions are int32, and tensors of the function's own may be indexed by them. They
    come before `mask` and `causal`.

    Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023), over the online softmax of Milakov and Gimelshein
    (2018).

    Shapes: q [..., H, L, D], k [..., H_kv, S, D] and v [..., H_kv, S, E] give [..., H, L, E]. Dtypes: floats and 8-bit
    floats; not integers, bools and complex (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError
    (E_DTYPE) for operands of several dtypes.

    >>> op.flash_attention(op.ones((2, 8, 5, 16)), op.ones((2, 2, 7, 16)), op.ones((2, 2, 7, 32)), causal=True).shape
    (2, 8, 5, 32)
    """
    queries, keys, values = (node(operand) for operand in (q, k, v))
    offset = None if mask is None else node(mask)
    return on(calls.flash_attention(queries, keys, values, causal, scale, offset, score_mod, mask_mod), stream)
