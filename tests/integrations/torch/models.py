"""Small models as users write them in torch, each with its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it


class Mlp(nn.Sequential):
    """Linear layers with an activation and dropout between them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(24, 48), nn.SiLU(), nn.Dropout(0.0), nn.LayerNorm(48), nn.Linear(48, 10))


class Attention(nn.Module):
    """Self-attention by torch's own function, with one product for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        parts = self.joint(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """A transformer's block, normalized before (`first`) or after attention and the layers that follow it."""

    def __init__(self, width: int, heads: int, causal: bool, first: bool, tanh: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.first, self.approximate = first, "tanh" if tanh else "none"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        before, after = self.norms
        if self.first:
            x = x + self.attention(before(x), mask)
            return x + self.feed(after(x))
        x = before(x + self.attention(x, mask))
        y: Tensor = after(x + self.feed(x))
        return y

    def feed(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(F.gelu(self.wide(x), approximate=self.approximate))
        return y


class Gpt2(nn.Module):
    """GPT-2: learned positions, causal blocks, the table of words also as the last product."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(67, 32), nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, 4, causal=True, first=True, tanh=True) for _ in range(layers))
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.norm(x) @ self.words.weight.T
        return y


class Bert(nn.Module):
    """BERT: blocks normalized afterwards, a mask of padding, the first word through tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(67, 32), nn.Embedding(64, 32)
        self.norm = nn.LayerNorm(32)
        self.blocks = nn.ModuleList(Block(32, 4, causal=False, first=False, tanh=False) for _ in range(2))
        self.pool = nn.Linear(32, 32)

    def forward(self, tokens: Tensor, is_word: Tensor) -> Tensor:
        mask = torch.zeros(is_word.shape, dtype=self.pool.weight.dtype).masked_fill(~is_word, -1e9)[:, None, None]
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x, mask)
        return torch.tanh(self.pool(x[:, 0]))


class Vit(nn.Module):
    """A vision transformer: patches by a strided convolution, a learned first word."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.blocks = nn.ModuleList(Block(32, 4, causal=False, first=True, tanh=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 11)

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
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.one(x)), inplace=True)
        return F.relu(self.norms[1](self.two(y)) + self.down(x))


class Resnet(nn.Module):
    """A ResNet of two stages, as many as differ: the first keeps the image's size, the second halves it."""

    def __init__(self, widths: tuple[int, ...] = (8, 16)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, before = [], widths[0]
        for number, width in enumerate(widths):
            blocks += [Residual(before, width, 1 if number == 0 else 2), Residual(width, width, 1)]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(before, 10)

    def forward(self, images: Tensor) -> Tensor:
        y: Tensor = self.head(self.pool(self.blocks(self.stem(images))).flatten(1))
        return y


class Unet(nn.Module):
    """A step down and up again: group norms, a transposed convolution, nearest neighbours, joined channels."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 8), nn.GroupNorm(4, 16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(32, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = F.silu(self.norms[0](self.one(images)))
        coarse = F.silu(self.norms[1](self.two(fine)))
        nearest = F.interpolate(coarse, scale_factor=2.0)
        y: Tensor = self.out(torch.cat([fine, self.up(coarse), nearest], 1))
        return y


class Gated(nn.Module):
    """An inverted residual with squeeze and excitation, as MobileNetV3 and EfficientNet have."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(6, 24, 1), nn.Conv2d(24, 24, 5, 2, 2, groups=24)
        self.less, self.more = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.narrow, self.norm = nn.Conv2d(24, 12, 1), nn.BatchNorm2d(24)

    def forward(self, images: Tensor) -> Tensor:
        y = F.hardswish(self.norm(self.deep(F.hardswish(self.wide(images)))))
        gate = F.hardsigmoid(self.more(F.relu(self.less(y.mean((2, 3), keepdim=True)))))
        out: Tensor = self.narrow(y * gate)
        return out


class Llama(nn.Module):
    """Llama's block: root mean squares, rotary positions, keys and values of fewer heads, a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(67, 32)
        self.q, self.kv, self.o = (nn.Linear(32, n, bias=False) for n in (32, 32, 32))
        self.gate, self.up, self.down = nn.Linear(32, 80, False), nn.Linear(32, 80, False), nn.Linear(80, 32, False)
        self.scales = nn.ParameterList([torch.rand(32) + 0.5 for _ in range(2)])

    def normalized(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def turned(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-2], dtype=x.dtype)
        angles = torch.outer(places, 10000.0 ** -torch.arange(0, 1, 0.25, dtype=x.dtype)).repeat(1, 2)
        left, right = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        batch, length, _ = x.shape
        h = self.normalized(x, self.scales[0])
        q = self.q(h).view(batch, length, 4, 8).transpose(1, 2)
        k, v = self.kv(h).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = (each.repeat_interleave(2, 1) for each in (self.turned(k), v))
        y = F.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, 32))
        h = self.normalized(x, self.scales[1])
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, 67, (batch, length))


def _images(batch: int, extent: int, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, extent, extent)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (Mlp, lambda: (torch.randn(5, 24),)),
    "gpt2": (Gpt2, lambda: (_tokens(2, 19),)),
    "bert": (Bert, lambda: (_tokens(2, 13), torch.arange(13) < torch.tensor([[13], [7]]))),
    "vit": (Vit, lambda: (_images(2, 32),)),
    "resnet": (Resnet, lambda: (_images(2, 32),)),
    "unet": (Unet, lambda: (_images(2, 16),)),
    "gated": (Gated, lambda: (_images(2, 14, 6),)),
    "llama": (Llama, lambda: (_tokens(2, 11),)),
}
"""By name: what makes the model, and what makes its inputs."""
