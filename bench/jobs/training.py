"""Steps of training as their users wrote them, through `torch.compile(model, backend="tessera")`: loss and gradients of
GPT-2, BERT, ViT and ResNet-18 with random weights.

What a step gives is the loss and the logarithm of each gradient's norm, so that small gradients are checked as closely
as large ones, and no copy of gradients is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

from bench.jobs.blocks import SEED
from bench.jobs.job import Call, Group, Inputs, Job
from bench.results import Goal

GOALS = (Goal("eager", ("eager", "eager_unlocked"), 1.0),)
GROUP = Group("training steps", 1.0)
HEAD = 64


class Step(nn.Module):
    """The loss of a network, and its gradients by all parameters."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        *given, wanted = inputs
        loss = F.cross_entropy(self.network(*given).flatten(0, -2), wanted.flatten())
        gradients = torch.autograd.grad(loss, list(self.network.parameters()))
        norms: Any = torch._foreach_norm(gradients)
        return torch.cat([loss.detach()[None], torch.stack(norms).log()])


class Block(nn.Module):
    """A transformer's block, normalized before attention and the layers that follow it, or after."""

    def __init__(self, width: int, causal: bool, first: bool) -> None:
        super().__init__()
        self.causal, self.first = causal, first
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        parts = self.joint(x).view(batch, length, 3, -1, min(HEAD, width)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out

    def feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(F.gelu(self.wide(x), approximate="tanh" if self.causal else "none"))
        return out

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        before, after = self.norms
        if self.first:
            x = x + self.attend(before(x), mask)
            return x + self.feed(after(x))
        x = before(x + self.attend(x, mask))
        y: Tensor = after(x + self.feed(x))
        return y


class Language(nn.Module):
    """GPT-2 (`causal`), or BERT, which sees a mask of words and normalizes afterwards: words to logits of words."""

    def __init__(self, width: int, blocks: int, words: int, length: int, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, causal, first=causal) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, is_word: Tensor | None = None) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        mask = None
        if is_word is not None:
            mask = torch.zeros(is_word.shape, dtype=x.dtype).masked_fill(~is_word, -1e9)[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        y: Tensor = self.norm(x) @ self.words.weight.T
        return y


class Vision(nn.Module):
    """ViT: patches by a strided convolution, a learned first word, the logits of its place."""

    def __init__(self, width: int, blocks: int, side: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, causal=False, first=True) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x)[:, 0])
        return y


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.around: nn.Module | None = None
        if inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(inner + (x if self.around is None else self.around(x)))


class ResNet18(nn.Module):
    """Images to the logits of classes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        widths = [width << stage for stage in (0, 0, 0, 1, 1, 2, 2, 3, 3)]
        self.blocks = nn.Sequential(*[Residual(a, b, 2 if a != b else 1) for a, b in pairwise(widths)])
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, 1)
        y: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return y


def _seeded(network: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(SEED)
    return Step(network())


def _through_tessera(module: nn.Module, inputs: Inputs) -> Call:
    import tessera.torch  # noqa: F401 - makes torch know the backend

    torch._dynamo.reset()
    compiled = torch.compile(module, backend="tessera", dynamic=False)
    return lambda: compiled(*inputs)


def _numbers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(SEED))


def _sentences(words: int, count: int, length: int, padded: bool) -> Inputs:
    tokens, wanted = _numbers(words, 2, count, length)
    lengths = torch.linspace(length // 2, length, count).long()
    return (tokens, torch.arange(length) < lengths[:, None], wanted) if padded else (tokens, wanted)


def _images(count: int, side: int, classes: int) -> Inputs:
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(SEED))
    return images, _numbers(classes, count)


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    width, blocks, words, length, side = (32, 1, 67, 16, 32) if quick else (512, 4, 8192, 128, 224)
    network = {"width": width, "blocks": blocks}
    language = {**network, "words": words, "length": length}
    found: list[tuple[str, Callable[[], nn.Module], Callable[[], Inputs]]] = [
        ("GPT-2", partial(Language, **language, causal=True), partial(_sentences, words, 2, length, False)),
        ("BERT", partial(Language, **language, causal=False), partial(_sentences, words, 4, length // 2, True)),
        ("ViT", partial(Vision, **network, side=side, patch=16, classes=100), partial(_images, 2, side, 100)),
        ("ResNet-18", partial(ResNet18, 8 if quick else 64, 100), partial(_images, 4, 64, 100)),
    ]
    return [
        Job(f"a step of {name}", GOALS, inputs, partial(_seeded, made), _through_tessera, 1e-3, group=GROUP)
        for name, made, inputs in found
    ]
