"""Attention forward on GPUs against torch's, as the FlashAttention papers measure it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.gpu.cases import Case, Made, Place, Theirs
from tessera import op

FLASH, CUDNN = "SDPA, FlashAttention-2", "SDPA, cuDNN"
WIDTH, TOKENS_IN_ALL = 2048, 16384
"""heads x head size, and batch x length, as in the FlashAttention papers."""


def _attention(length: int, head: int, causal: bool, place: Place) -> Made:
    shape = (max(TOKENS_IN_ALL // length, 1), WIDTH // head, length, head)
    q, k, v = (place.normal(*shape, dtype=torch.bfloat16) for _ in range(3))
    x, y, z = (place.given(each) for each in (q, k, v))
    first = [each[:1, :1].double() for each in (q, k, v)]
    return Made(
        {"default": lambda: op.flash_attention(x, y, z, causal=causal)},
        {
            FLASH: lambda: _sdpa("FLASH_ATTENTION", q, k, v, causal),
            CUDNN: lambda: _sdpa("CUDNN_ATTENTION", q, k, v, causal),
        },
        lambda: torch.nn.functional.scaled_dot_product_attention(first[0], first[1], first[2], is_causal=causal),
    )


def _sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Theirs:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call() -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    call()
    return call


def attention() -> Iterator[Case]:
    """Attention forward in bf16: head sizes 64 and 128, lengths 2k to 16k, causal and not."""
    for head in (64, 128):
        for length in (2048, 4096, 8192, 16384):
            for causal in (False, True):
                # Two products of length x length x head a head; a causal mask leaves half.
                work = 4.0 * TOKENS_IN_ALL * length * WIDTH / (2 if causal else 1)
                label = f"bf16 d={head} length={length}{' causal' if causal else ''}"
                make = partial(_attention, length, head, causal)
                yield Case("attention", label, work, "TFLOP/s", 3e-2, make, {FLASH: 1.0, CUDNN: 0.75})
