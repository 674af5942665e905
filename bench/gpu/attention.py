"""Attention on GPUs, forward and backward, against torch's, as the FlashAttention papers measure it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

import tessera
from bench.gpu.cases import Case, Made, Place, Theirs
from tessera import op
from tessera.dtypes import DType, fp32
from tessera.lazy.evaluation import evaluate
from tessera.ops.algebra import call, literal
from tessera.ops.attention.whole import as_stored, row_sums, widened

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
            FLASH: lambda: sdpa("FLASH_ATTENTION", q, k, v, is_causal=causal),
            CUDNN: lambda: sdpa("CUDNN_ATTENTION", q, k, v, is_causal=causal),
        },
        lambda: torch.nn.functional.scaled_dot_product_attention(first[0], first[1], first[2], is_causal=causal),
    )


@dataclass(frozen=True)
class Gradients:
    """Several results of one shape, which are evaluated together; as one they are stacked."""

    parts: Sequence[tessera.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the results as one."""
        return len(self.parts), *self.parts[0].shape

    @property
    def dtype(self) -> DType:
        """Of each result."""
        return self.parts[0].dtype

    def eval(self, out: torch.Tensor | None = None) -> Gradients:
        """Computes them all, and copies them into `out`."""
        evaluate(self.parts)
        if out is not None:
            out.copy_(torch.stack([part.torch() for part in self.parts]))
        return self


def _backward(length: int, head: int, causal: bool, place: Place) -> Made:
    shape = (max(TOKENS_IN_ALL // length, 1), WIDTH // head, length, head)
    q, k, v, g = (place.normal(*shape, dtype=torch.bfloat16) for _ in range(4))
    x, y, z, above = (place.given(each) for each in (q, k, v, g))
    out, scale = op.flash_attention(x, y, z, causal=causal), literal(head**-0.5, fp32)
    logarithms = call("attention_logarithms", x, y, z, scale, causal=causal)
    evaluate([out, logarithms])

    def ours() -> Gradients:
        mean = row_sums(widened(above, fp32) * widened(out, fp32))
        made_of = x, y, z, above, logarithms, mean, scale
        d_q, d_k, d_v = (call(f"attention_d{of}", *made_of, causal=causal) for of in "qkv")
        return Gradients([as_stored(each, x) for each in (d_q * scale, d_k * scale, d_v)])

    first = [each[:1, :1].double() for each in (q, k, v, g)]
    return Made(
        {"default": ours},
        {
            FLASH: lambda: _sdpa_backward("FLASH_ATTENTION", q, k, v, g, causal),
            CUDNN: lambda: _sdpa_backward("CUDNN_ATTENTION", q, k, v, g, causal),
        },
        lambda: torch.stack(_gradients(first[:3], first[3], causal)),
    )


def _gradients(operands: Sequence[torch.Tensor], g: torch.Tensor, causal: bool) -> tuple[torch.Tensor, ...]:
    wide = [each.requires_grad_() for each in operands]
    result = torch.nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[2], is_causal=causal)
    return torch.autograd.grad(result, wide, g)


def _sdpa_backward(
    backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, causal: bool
) -> Theirs:
    """The backward kernel by itself: autograd runs it on the stream of the forward pass, which no graph captures."""
    aten, zero = torch.ops.aten, torch.zeros((), dtype=torch.int64, device=q.device)
    given: tuple[object, ...]
    if backend == "FLASH_ATTENTION":
        out, logarithms, starts_q, starts_k, most_q, most_k, *_ = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal
        )
        given = (out, logarithms, starts_q, starts_k, most_q, most_k, 0.0, causal, zero, zero)
        backwards = aten._scaled_dot_product_flash_attention_backward
    else:
        out, logarithms, starts_q, starts_k, most_q, most_k, *_ = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal
        )
        given = (out, logarithms, zero, zero, None, starts_q, starts_k, most_q, most_k, 0.0, causal)
        backwards = aten._scaled_dot_product_cudnn_attention_backward

    def call() -> torch.Tensor:
        return cast(torch.Tensor, backwards(g, q, k, v, *given)[0])

    call()
    return call


def sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Theirs:
    """torch's attention by one of its backends, which has run once."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call() -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    call()
    return call


def attention() -> Iterator[Case]:
    """Attention forward in bf16: head sizes 64 and 128, lengths 2k to 16k, causal and not."""
    # Two products of length x length x head a head.
    return _cases("attention", _attention, 4.0, (2048, 4096, 8192, 16384))


def backward() -> Iterator[Case]:
    """Attention backward alone, without the forward that leaves what it needs: heads of 64 and 128, 2k and 8k."""
    # Five products, as the papers count them, whoever forms scores twice.
    return _cases("backward", _backward, 10.0, (2048, 8192))


def _cases(
    suite: str, make: Callable[[int, int, bool, Place], Made], flops: float, lengths: Sequence[int]
) -> Iterator[Case]:
    """A causal mask leaves half of the work."""
    for head in (64, 128):
        for length in lengths:
            for causal in (False, True):
                work = flops * TOKENS_IN_ALL * length * WIDTH / (2 if causal else 1)
                label = f"bf16 d={head} length={length}{' causal' if causal else ''}"
                goals = {FLASH: 1.0, CUDNN: 0.75}
                yield Case(suite, label, work, "TFLOP/s", 3e-2, partial(make, length, head, causal), goals)
