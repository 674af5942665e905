"""ResNet-50, written with `op.` and with torch: 53 convolutions, each with its batch norm folded into it.

He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride in the 3x3 convolution. The weights
are random; what is shown is how a convolution network is written, and that both give the same.

Run it: ``python examples/resnet50.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

import tessera
from tessera import op
from tessera.typing import ArrayLike

DEPTHS = (3, 4, 6, 3)
CLASSES = 1000
SEED = 0


class Bottleneck(nn.Module):
    """A block as a user of torch writes it: 1x1, 3x3, 1x1, and a way around them."""

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        wide = 4 * middle
        self.conv_1, self.norm_1 = nn.Conv2d(channels, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv_2 = nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(middle)
        self.conv_3, self.norm_3 = nn.Conv2d(middle, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.around: nn.Sequential | None = None
        if stride != 1 or channels != wide:
            self.around = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm_1(self.conv_1(x)))
        inner = torch.relu(self.norm_2(self.conv_2(inner)))
        kept = x if self.around is None else self.around(x)
        return torch.relu(self.norm_3(self.conv_3(inner)) + kept)


class Network(nn.Module):
    """The network as a user of torch writes it: images (n, 3, height, width) to logits (n, classes)."""

    def __init__(self, width: int = 64, depths: Sequence[int] = DEPTHS, classes: int = CLASSES) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks: list[Bottleneck] = []
        channels = width
        for stage, depth in enumerate(depths):
            middle = width << stage
            for number in range(depth):
                blocks.append(Bottleneck(channels, middle, 2 if stage and not number else 1))
                channels = 4 * middle
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(images))))
        logits: torch.Tensor = self.classify(self.blocks(x).mean((-2, -1)))
        return logits


def statistics_of(norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the variance that a batch norm has kept."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def random_network(
    width: int = 64,
    depths: Sequence[int] = DEPTHS,
    classes: int = CLASSES,
    dtype: torch.dtype = torch.float32,
    seed: int = SEED,
) -> Network:
    """A network with seeded random weights and statistics, frozen, weights in channels-last format; by default
    ResNet-50."""
    torch.manual_seed(seed)
    network = Network(width, depths, classes)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            mean, variance = statistics_of(part)
            nn.init.uniform_(mean, -0.1, 0.1)
            nn.init.uniform_(variance, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.0)
    last = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    frozen: Network = last.to(dtype).eval().requires_grad_(False)
    return frozen


def random_images(count: int, side: int = 224, dtype: torch.dtype = torch.float32, seed: int = SEED) -> torch.Tensor:
    """Images (count, 3, side, side) in channels-last format."""
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))
    return images.to(dtype).to(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Convolution:
    """A convolution with its batch norm folded in: its weights stay, so that they are packed once."""

    weight: tessera.Tensor
    bias: tessera.Tensor
    stride: int
    padding: int

    def __call__(self, x: ArrayLike) -> tessera.Tensor:
        return op.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Convolution:
    """norm(convolution(x)) as one convolution: norm scales and shifts each channel by numbers that stay."""
    weight, (mean, variance) = convolution.weight, statistics_of(norm)
    scale = norm.weight.double() * torch.rsqrt(variance.double() + norm.eps)
    shift = norm.bias.double() - mean.double() * scale
    scaled = (weight.double() * scale[:, None, None, None]).to(weight.dtype)
    return Convolution(
        op.constant(scaled), op.constant(shift.to(weight.dtype)), convolution.stride[0], int(convolution.padding[0])
    )


@dataclass(frozen=True)
class Block:
    """The convolutions of a bottleneck."""

    convolutions: tuple[Convolution, Convolution, Convolution]
    around: Convolution | None

    def __call__(self, x: tessera.Tensor) -> tessera.Tensor:
        first, second, third = self.convolutions
        kept = x if self.around is None else self.around(x)
        return op.relu(op.add(third(op.relu(second(op.relu(first(x))))), kept))


@dataclass(frozen=True)
class Weights:
    """A network's weights, batch norms folded in."""

    first: Convolution
    blocks: tuple[Block, ...]
    classify: tessera.Tensor
    bias: tessera.Tensor


def weights_of(network: Network) -> Weights:
    """The weights of a torch network as tensors that stay."""
    blocks = []
    for part in network.blocks:
        assert isinstance(part, Bottleneck)
        inner = (folded(part.conv_1, part.norm_1), folded(part.conv_2, part.norm_2), folded(part.conv_3, part.norm_3))
        around = None
        if part.around is not None:
            convolution, norm = part.around
            assert isinstance(convolution, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            around = folded(convolution, norm)
        blocks.append(Block(inner, around))
    classify, bias = op.constant(network.classify.weight), op.constant(network.classify.bias)
    return Weights(folded(network.conv, network.norm), tuple(blocks), classify, bias)


def logits(images: torch.Tensor, weights: Weights) -> tessera.Tensor:
    """The logits (n, classes) of images (n, 3, height, width)."""
    x = op.max_pool2d(op.relu(weights.first(images)), 3, 2, padding=1)
    for block in weights.blocks:
        x = block(x)
    return op.add(op.matmul(op.mean(x, axis=(-2, -1)), weights.classify.T), weights.bias)


def main(side: int = 224, depths: Sequence[int] = DEPTHS, write: Callable[[str], None] = print) -> float:
    """Classifies one image with both; gives the largest difference as a share of the largest logit."""
    network = random_network(depths=depths)
    images = random_images(1, side)
    found = logits(images, weights_of(network)).torch()
    with torch.no_grad():
        expected = network(images)
    difference = float((found - expected).abs().max() / expected.abs().max())
    write(f"ResNet of {sum(depths)} blocks, {side} x {side} pixels: logits differ from torch's by {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
