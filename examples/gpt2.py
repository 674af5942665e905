"""GPT-2, written with `op.` and with torch: embeddings, blocks, the logits of the token that comes next.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). The weights are random; what is shown is
how a whole model is written, and that both give the same.

Run it: ``python -m examples.gpt2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

import tessera
from examples.gpt2_block import EPSILON, SEED, Attention, Block, Weights, block, constants, flash, norm
from tessera import op

VOCABULARY = 50257
LONGEST = 1024


class Model(nn.Module):
    """The model as a user of torch writes it: tokens (..., n) to the logits of what follows (..., vocabulary)."""

    def __init__(self, width: int, heads: int, blocks: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, EPSILON)
        self.heads = heads

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[-1]]
        for each in self.blocks:
            x = each(x)
        logits: torch.Tensor = self.norm(x[..., -1, :]) @ self.words.weight.T
        return logits


def random_model(
    width: int = 768,
    heads: int = 12,
    blocks: int = 12,
    vocabulary: int = VOCABULARY,
    longest: int = LONGEST,
    dtype: torch.dtype = torch.float32,
    seed: int = SEED,
) -> Model:
    """A model with seeded random weights, frozen; by default of the size of GPT-2 small."""
    torch.manual_seed(seed)
    return Model(width, heads, blocks, vocabulary, longest).to(dtype).eval().requires_grad_(False)


def random_tokens(*shape: int, vocabulary: int = VOCABULARY, seed: int = SEED) -> torch.Tensor:
    """Tokens as a user has them: numbers below `vocabulary`, int64."""
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def constants_of(module: Model) -> tuple[Weights, Sequence[Weights]]:
    """The weights around the blocks, and those of each block, as tensors that stay."""
    outer = {name: op.constant(tensor) for name, tensor in module.state_dict().items() if "blocks" not in name}
    return outer, [constants(each) for each in module.blocks]


def logits(
    tokens: torch.Tensor, outer: Weights, blocks: Sequence[Weights], heads: int, attention: Attention = flash
) -> tessera.Tensor:
    """The logits (..., vocabulary) of what follows `tokens` (..., n)."""
    x = op.add(op.embedding(outer["words.weight"], tokens), outer["places.weight"][: tokens.shape[-1]])
    for weights in blocks:
        x = block(x, weights, heads, attention)
    return op.matmul(norm(x[..., -1, :], outer, "norm"), op.transpose(outer["words.weight"]))


def main(blocks: int = 12, tokens: int = 64, write: Callable[[str], None] = print) -> float:
    """Computes the next token's logits with both; gives the largest difference."""
    module = random_model(blocks=blocks)
    text = random_tokens(tokens)
    found = logits(text, *constants_of(module), module.heads).torch()
    with torch.no_grad():
        expected = module(text)
    difference = float((found - expected).abs().max())
    same = int(found.argmax()) == int(expected.argmax())
    write(f"GPT-2 of {blocks} blocks, {tokens} tokens: logits differ from torch's by {difference:.1e} at most")
    write(f"the likeliest token is {'the same' if same else 'another'}")
    return difference


if __name__ == "__main__":
    main()
