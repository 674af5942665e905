"""A block of a Llama-type model, written with `op.` and with torch: RMS norms, rotary positions, grouped heads, SwiGLU.

Touvron et al., "Llama 2" (2023); Su et al., "RoFormer" (2021); Ainslie et al., "GQA" (2023); Shazeer, "GLU Variants
Improve Transformer" (2020). The weights are random; what is shown is how such a block is written.

Run it: ``python examples/llama_block.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import tessera
from tessera import op
from tessera.typing import ArrayLike

EPSILON = 1e-5
BASE = 10000.0
SEED = 0


def rotations(tokens: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (tokens, size) of the angles of RoPE, each half of them twice."""
    frequencies = BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Block(nn.Module):
    """The block as a user of torch writes it; (tokens, width) or (batch, tokens, width) to the same shape."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norm_1 = nn.RMSNorm(width, EPSILON)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, kv_heads * self.size, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.norm_2 = nn.RMSNorm(width, EPSILON)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        cosines, sines = rotations(tokens, self.size)
        self.register_buffer("cosines", cosines)
        self.register_buffer("sines", sines)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotates each pair (j, j + size / 2) of x [..., tokens, size] by its token's angle."""
        first, second = x.chunk(2, dim=-1)
        tokens = x.shape[-2]
        return x * self.cosines[:tokens] + torch.cat((-second, first), -1) * self.sines[:tokens]

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention with grouped heads, without the projection that follows."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            self.rotated(query), self.rotated(key), value, is_causal=True, enable_gqa=True
        )
        joined: torch.Tensor = mixed.transpose(-2, -3).flatten(-2)
        return joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.projection(self.attention(self.norm_1(x)))
        normed = self.norm_2(x)
        result: torch.Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return result


def random_block(
    width: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    tokens: int,
    dtype: torch.dtype = torch.float32,
    seed: int = SEED,
) -> Block:
    """A block with seeded random weights, frozen, for up to `tokens` tokens."""
    torch.manual_seed(seed)
    return Block(width, heads, kv_heads, hidden, tokens).to(dtype).eval().requires_grad_(False)


Weights = Mapping[str, tessera.Tensor]
"""A module's parameters by name."""


def constants(module: nn.Module) -> Weights:
    """The parameters of a module as tensors that stay, which products keep packed."""
    return {name: op.constant(tensor) for name, tensor in module.state_dict().items()}


Attention = Callable[[tessera.Tensor, tessera.Tensor, tessera.Tensor], tessera.Tensor]


def linear(x: ArrayLike, weights: Weights, name: str) -> tessera.Tensor:
    """The layer `name`: x @ weight^T."""
    return op.matmul(x, op.transpose(weights[f"{name}.weight"]))


def rotated(x: tessera.Tensor, weights: Weights) -> tessera.Tensor:
    """Rotates each pair (j, j + size / 2) of x [..., tokens, size] by its token's angle."""
    tokens = x.shape[-2]
    return op.rope(x, cos=weights["cosines"][:tokens], sin=weights["sines"][:tokens])


@cache
def causal_mask(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores (tokens, tokens): -inf for the keys behind a query, else 0."""
    return torch.full((tokens, tokens), -math.inf, dtype=dtype).triu(1)


def flash(query: tessera.Tensor, key: tessera.Tensor, value: tessera.Tensor) -> tessera.Tensor:
    """Causal attention by the operator; queries of a group share keys and values."""
    return op.flash_attention(query, key, value, causal=True)


def algebra(query: tessera.Tensor, key: tessera.Tensor, value: tessera.Tensor) -> tessera.Tensor:
    """Causal attention written out: softmax(scale * Q K^T + mask) V, a group of queries as a dimension of its own."""
    *outer, heads, tokens, size = query.shape
    kv_heads = key.shape[-3]
    grouped = query.reshape(*outer, kv_heads, heads // kv_heads, tokens, size)
    keys, values = (part.reshape(*outer, kv_heads, 1, tokens, size) for part in (key, value))
    scores = op.matmul(grouped, op.transpose(keys)) * size**-0.5
    return op.matmul(op.softmax(scores + causal_mask(tokens, query.dtype.torch)), values).reshape(
        *outer, heads, tokens, size
    )


def block(x: ArrayLike, weights: Weights, size: int, attention: Attention = flash) -> tessera.Tensor:
    """The block of `weights` on x [..., tokens, width], with heads of `size`."""
    normed = op.rms_norm(x, weights["norm_1.weight"], eps=EPSILON)
    query, key, value = (heads_of(linear(normed, weights, name), size) for name in ("query", "key", "value"))
    mixed = attention(rotated(query, weights), rotated(key, weights), value)
    joined = swapped(mixed).reshape(*mixed.shape[:-3], mixed.shape[-2], -1)
    x = op.add(x, linear(joined, weights, "projection"))
    normed = op.rms_norm(x, weights["norm_2.weight"], eps=EPSILON)
    hidden = op.silu(linear(normed, weights, "gate")) * linear(normed, weights, "up")
    return op.add(x, linear(hidden, weights, "down"))


def heads_of(x: tessera.Tensor, size: int) -> tessera.Tensor:
    """x [..., tokens, width] as heads [..., width / size, tokens, size], a view."""
    return swapped(x.reshape(*x.shape[:-1], -1, size))


def swapped(x: tessera.Tensor) -> tessera.Tensor:
    """Exchanges tokens and heads."""
    return x.transpose(*range(x.ndim - 3), x.ndim - 2, x.ndim - 3, x.ndim - 1)


def main(
    width: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    hidden: int = 1408,
    tokens: int = 128,
    write: Callable[[str], None] = print,
) -> float:
    """Computes one block with both; gives the largest difference."""
    module = random_block(width, heads, kv_heads, hidden, tokens)
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(SEED))
    found = block(x, constants(module), module.size).torch()
    with torch.no_grad():
        difference = float((found - module(x)).abs().max())
    write(f"Llama block, {tokens} tokens of width {width}: differs from torch's by {difference:.1e} at most")
    return difference


if __name__ == "__main__":
    main()
