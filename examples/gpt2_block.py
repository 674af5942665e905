"""A block of GPT-2, written with `op.` and with torch: attention and a wide layer with gelu, a layer norm before each.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). The weights are random; what is shown is
how such a block is written, and that both give the same.

Run it: ``python examples/gpt2_block.py``.
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
SEED = 0


class Block(nn.Module):
    """The block as a user of torch writes it; (tokens, width) or (batch, tokens, width) to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width, EPSILON)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width, EPSILON)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, without the projection that follows."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: torch.Tensor = mixed.transpose(-2, -3).flatten(-2)
        return joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.projection(self.attention(self.norm_1(x)))
        result: torch.Tensor = x + self.narrow(functional.gelu(self.widen(self.norm_2(x)), approximate="tanh"))
        return result


def random_block(width: int, heads: int, dtype: torch.dtype = torch.float32, seed: int = SEED) -> Block:
    """A block with seeded random weights, frozen."""
    torch.manual_seed(seed)
    return Block(width, heads).to(dtype).eval().requires_grad_(False)


Weights = Mapping[str, tessera.Tensor]
"""A module's parameters by name."""


def constants(module: nn.Module) -> Weights:
    """The parameters of a module as tensors that stay, which products keep packed."""
    return {name: op.constant(tensor) for name, tensor in module.state_dict().items()}


def linear(x: ArrayLike, weights: Weights, name: str) -> tessera.Tensor:
    """The layer `name`: x @ weight^T + bias."""
    return op.add(op.matmul(x, op.transpose(weights[f"{name}.weight"])), weights[f"{name}.bias"])


def norm(x: ArrayLike, weights: Weights, name: str) -> tessera.Tensor:
    """The layer norm `name`."""
    return op.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=EPSILON)


def heads_of(x: tessera.Tensor, heads: int) -> tuple[tessera.Tensor, ...]:
    """Queries, keys and values [..., heads, tokens, width / heads] of x [..., tokens, 3 * width]; all are views."""
    *outer, tokens, triple = x.shape
    split = x.reshape(*outer, tokens, 3, heads, triple // 3 // heads)
    places = range(len(outer))
    axes = (len(outer) + 1, *places, len(outer) + 2, len(outer), len(outer) + 3)
    return tuple(split.transpose(axes))


@cache
def causal_mask(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores (tokens, tokens): -inf for the keys behind a query, else 0."""
    return torch.full((tokens, tokens), -math.inf, dtype=dtype).triu(1)


def flash(query: tessera.Tensor, key: tessera.Tensor, value: tessera.Tensor) -> tessera.Tensor:
    """Causal attention by the operator."""
    return op.flash_attention(query, key, value, causal=True)


def algebra(query: tessera.Tensor, key: tessera.Tensor, value: tessera.Tensor) -> tessera.Tensor:
    """Causal attention written out: softmax(scale * Q K^T + mask) V."""
    tokens, size = query.shape[-2:]
    scores = op.matmul(query, op.transpose(key)) * size**-0.5
    return op.matmul(op.softmax(scores + causal_mask(tokens, query.dtype.torch)), value)


Attention = Callable[[tessera.Tensor, tessera.Tensor, tessera.Tensor], tessera.Tensor]


def block(x: ArrayLike, weights: Weights, heads: int, attention: Attention = flash) -> tessera.Tensor:
    """The block of `weights` on x [..., tokens, width]."""
    query, key, value = heads_of(linear(norm(x, weights, "norm_1"), weights, "qkv"), heads)
    mixed = attention(query, key, value)
    axes = (*range(mixed.ndim - 3), mixed.ndim - 2, mixed.ndim - 3, mixed.ndim - 1)
    joined = mixed.transpose(axes).reshape(*mixed.shape[:-3], mixed.shape[-2], -1)
    x = op.add(linear(joined, weights, "projection"), x)
    hidden = op.gelu(linear(norm(x, weights, "norm_2"), weights, "widen"), approximate="tanh")
    return op.add(x, linear(hidden, weights, "narrow"))


def main(width: int = 768, heads: int = 12, tokens: int = 128, write: Callable[[str], None] = print) -> float:
    """Computes one block with both; gives the largest difference."""
    module = random_block(width, heads)
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(SEED))
    found = block(x, constants(module), heads).torch()
    with torch.no_grad():
        difference = float((found - module(x)).abs().max())
    write(f"GPT-2 block, {tokens} tokens of width {width}: differs from torch's by {difference:.1e} at most")
    return difference


if __name__ == "__main__":
    main()
