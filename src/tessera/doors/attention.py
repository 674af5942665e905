"""Attention: `op.flash_attention`, `op.paged_attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tessera.doors.calls.nodes import node, on
from tessera.dtypes import dtype_of
from tessera.handle import Tensor
from tessera.ops.attention import calls
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike

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


def scaled_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    q_scale: float | ArrayLike = 1.0,
    k_scale: float | ArrayLike = 1.0,
    v_scale: float | ArrayLike = 1.0,
    causal: bool = False,
    scale: float | None = None,
    dtype: DTypeLike = "bf16",
    stream: Stream | None = None,
) -> Tensor:
    """Attention to numbers that stand for others by factors, as 8-bit floats do; the result has a dtype of its own.

    softmax(scale * q_scale * k_scale * q @ k^T) @ v * v_scale, where `q`, `k`, `v`, `causal` and `scale` are those of
    `flash_attention`. A factor is one number for a whole tensor, or a tensor without dimensions. Operands are read as
    they lie, scores, softmax and sums are formed in fp32 (fp64 of fp64), and the result is rounded once, to `dtype`.
    Where a GPU multiplies fp8_e4m3 and rounds to it by instructions (sm_90, sm_100, sm_120), weights, which are 1 at
    most, are multiplied with fp8_e4m3 values in that dtype, 256 times as large; elsewhere, and of fp8_e5m2, they are
    not rounded to 8 bits.

    Shapes: q [..., H, L, D], k [..., H_kv, S, D] and v [..., H_kv, S, E] give [..., H, L, E]. Dtypes: floats and 8-bit
    floats; not integers, bools and complex (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError
    (E_DTYPE) for operands of several dtypes, ArgumentError (E_ARGUMENT) for factors with dimensions.

    >>> q, k, v = (op.cast(op.ones((8, 5, 16)), "fp8_e4m3") for _ in range(3))
    >>> op.scaled_attention(q, k, v, v_scale=0.5).dtype
    bf16
    """
    of_q, of_k, of_v = (each if isinstance(each, int | float) else node(each) for each in (q_scale, k_scale, v_scale))
    found = calls.scaled_attention(
        *(node(operand) for operand in (q, k, v)),
        q_scale=of_q,
        k_scale=of_k,
        v_scale=of_v,
        causal=causal,
        scale=scale,
        dtype=dtype_of(dtype),
    )
    return on(found, stream)


def paged_attention(
    q: ArrayLike,
    key_pages: ArrayLike,
    value_pages: ArrayLike,
    block_table: ArrayLike,
    lengths: ArrayLike,
    *,
    causal: bool = True,
    scale: float | None = None,
    soft_cap: float | None = None,
    window: int | None = None,
    stream: Stream | None = None,
) -> Tensor:
    """Attention of the last queries of sequences to keys and values that lie in pages of a pool, read where they lie.

    `q` is [sequences, heads, queries, d], or [sequences, heads, d] for one query each; `key_pages` is
    [pages, heads_kv, keys of a page, d] and `value_pages` [pages, heads_kv, keys of a page, d_v], with any strides, of
    one dtype; heads are a multiple of heads_kv. `block_table[s, t]` is the page that holds the t-th `keys of a page`
    keys of sequence s, and `lengths[s]` how many keys it has, those of its queries among them; both are int32 or int64.
    Sequences may share pages. What lies past a length may be anything: keys, values and entries of the table. The
    result is [sequences, heads, queries, d_v], or as `q` without queries.

    With `causal` query i of a sequence sees the keys j <= i + length - queries, so that the last query sees all; with a
    `window` those j > i + length - queries - window. `scale` is 1 / sqrt(d) by default; with `soft_cap` a scaled score
    s becomes soft_cap * tanh(s / soft_cap). A query without any key gives 0.

    On CPUs tables and lengths are checked when the result is computed: IndexRangeError (E_INDEX). Elsewhere they are
    not; an entry stands for the nearest page there is, so that no memory outside the pool is read. A table without
    columns has room for no keys, whatever lengths say, and is not checked.

    Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023).

    Shapes: q [S, H, L, D], key_pages [P, H_kv, B, D], value_pages [P, H_kv, B, E], block_table [S, T] and lengths [S]
    give [S, H, L, E]. Dtypes: floats and 8-bit floats; not integers, bools and complex (E_DTYPE). Tables and lengths
    are int32 or int64. Raises ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError (E_DTYPE).

    >>> pages = op.ones((6, 2, 16, 8))
    >>> table, lengths = op.tensor([[5, 0], [1, 9]]), op.tensor([20, 16])  # the second sequence has one page
    >>> op.paged_attention(op.ones((2, 4, 8)), pages, pages, table, lengths).shape
    (2, 4, 8)
    """
    operands = (node(operand) for operand in (q, key_pages, value_pages, block_table, lengths))
    found = calls.paged_attention(*operands, causal=causal, scale=scale, soft_cap=soft_cap, window=window)
    return on(found, stream)
