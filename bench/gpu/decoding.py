"""Attention of one new token on GPUs: keys and values are read once, whatever the queries that share them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.gpu.attention import CUDNN, FLASH, sdpa
from bench.gpu.cases import Case, Made, Place
from tessera import op

HEADS, SHARED, HEAD = 32, 8, 128
"""Query heads, heads of keys and values, and the head size of Llama 3 8B, "The Llama 3 Herd of Models", table 3."""
SEQUENCES, KEYS = (1, 16), (4096, 32768)


def _decoding(sequences: int, keys: int, place: Place) -> Made:
    q = place.normal(sequences, HEADS, 1, HEAD, dtype=torch.bfloat16)
    k, v = (place.normal(sequences, SHARED, keys, HEAD, dtype=torch.bfloat16) for _ in range(2))
    x, y, z = (place.given(each) for each in (q, k, v))
    exact = [each[:1].double() for each in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return Made(
        {"default": lambda: op.flash_attention(x, y, z)},
        {
            FLASH: lambda: sdpa("FLASH_ATTENTION", q, k, v, enable_gqa=True),
            CUDNN: lambda: sdpa("CUDNN_ATTENTION", q, k, v, enable_gqa=True),
        },
        lambda: attend(exact[0], exact[1], exact[2], enable_gqa=True),
    )


def decoding() -> Iterator[Case]:
    """One query a head in bf16, of one sequence and of sixteen, against 4k and 32k keys."""
    for sequences in SEQUENCES:
        for keys in KEYS:
            work = 2.0 * sequences * SHARED * keys * HEAD * 2
            label = f"bf16 decoding, {sequences} x {keys} keys"
            yield Case("decoding", label, work, "GB/s", 3e-2, partial(_decoding, sequences, keys), {FLASH: 1.0})
