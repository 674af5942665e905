"""Convolutions: ResNet-50's layers with their batch norms folded in, images of one and of eight, and large windows.

Each is a convolution with bias and relu. Weights stay, for us (`op.constant`) and for the library: Inductor calls
`_convolution_pointwise` with frozen weights, oneDNN's convolution over weights that it packed beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from bench.environments import NotMeasuredError, onednn_packs
from bench.jobs.job import Call, Group, Inputs, Job, Peer
from tessera import op

SEED = 47
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
"""Of the largest value of the result, which is rounded to bf16 by 2^-9."""
LAYERS_RATIO = 1.0
"""The goal: the geometric mean of the best peer's time / ours, over ResNet-50's layers."""
BATCHES = (1, 8)


@dataclass(frozen=True)
class Layer:
    """One convolution: a square image of `size`, a square window, the padding of a "same" result."""

    size: int
    channels: int
    outputs: int
    window: int
    stride: int = 1

    @property
    def name(self) -> str:
        """What the tables show."""
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.size} x {self.size} x {self.channels} to {self.outputs}, {self.window} x {self.window}{step}"


RESNET_50: tuple[Layer, ...] = (
    Layer(224, 3, 64, 7, 2),
    Layer(56, 64, 64, 1),
    Layer(56, 64, 64, 3),
    Layer(56, 64, 256, 1),
    Layer(56, 256, 64, 1),
    Layer(56, 256, 128, 1),
    Layer(56, 128, 128, 3, 2),
    Layer(28, 128, 512, 1),
    Layer(56, 256, 512, 1, 2),
    Layer(28, 512, 128, 1),
    Layer(28, 128, 128, 3),
    Layer(28, 512, 256, 1),
    Layer(28, 256, 256, 3, 2),
    Layer(14, 256, 1024, 1),
    Layer(28, 512, 1024, 1, 2),
    Layer(14, 1024, 256, 1),
    Layer(14, 256, 256, 3),
    Layer(14, 1024, 512, 1),
    Layer(14, 512, 512, 3, 2),
    Layer(7, 512, 2048, 1),
    Layer(14, 1024, 2048, 1, 2),
    Layer(7, 2048, 512, 1),
    Layer(7, 512, 512, 3),
)
"""The distinct convolutions of ResNet-50 for images of 224 x 224 (He et al. 2015, the stride in the 3 x 3 window)."""

LARGE: tuple[Layer, ...] = (Layer(56, 32, 32, 31), Layer(112, 16, 16, 15))
"""Windows so large that a transform may be the faster way."""


@dataclass(frozen=True)
class Case:
    """A layer on a batch of images, in a dtype."""

    layer: Layer
    batch: int
    dtype: str
    group: str | None = None

    def inputs(self) -> Inputs:
        """Images of standard-normal values in channels-last format."""
        generator = torch.Generator().manual_seed(SEED)
        layer = self.layer
        images = torch.randn(self.batch, layer.channels, layer.size, layer.size, generator=generator)
        return (images.to(DTYPES[self.dtype]).to(memory_format=torch.channels_last),)

    def module(self) -> nn.Module:
        """Torch's, frozen, in channels-last format."""
        return Convolution(self.layer).to(DTYPES[self.dtype])

    def ours(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's."""
        assert isinstance(module, Convolution)
        weight, bias = op.constant(module.conv.weight), op.constant(cast(torch.Tensor, module.conv.bias))
        (x,), stride, padding = inputs, self.layer.stride, self.layer.window // 2
        return lambda: op.relu(op.conv2d(x, weight, bias, stride=stride, padding=padding)).eval()

    def spectral(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's, through Fourier transforms."""
        assert isinstance(module, Convolution)
        weight, bias = op.constant(module.conv.weight), op.constant(cast(torch.Tensor, module.conv.bias))
        (x,), padding = inputs, self.layer.window // 2
        return lambda: op.relu(op.spectral_conv(x, weight, bias, padding=padding)).eval()

    def job(self) -> Job:
        """The case as the bench runs it."""
        layer, itemsize = self.layer, DTYPES[self.dtype].itemsize
        side = -(-layer.size // layer.stride)
        weights = layer.outputs * layer.channels * layer.window**2
        results = self.batch * side**2 * layer.outputs
        image = self.batch * layer.size**2 * layer.channels
        return Job(
            name=f"{self.dtype} {self.batch} x {layer.name}",
            goal=None if self.group else LAYERS_RATIO,
            inputs=self.inputs,
            module=self.module,
            ours=self.ours,
            tolerance=TOLERANCE[self.dtype],
            peers={"packed weights": Peer(_packed), "channels first": Peer(_channels_first)},
            flops=2 * results * layer.channels * layer.window**2,
            bytes=(image + weights + results) * itemsize,
            dtype=self.dtype,
            group=Group(self.group, LAYERS_RATIO) if self.group else None,
            variants={"spectral": self.spectral} if layer in LARGE and self.dtype == "fp32" else {},
            compiles=False,  # Inductor calls the packed convolution
        )


class Convolution(nn.Module):
    """A convolution with bias and relu."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.conv = nn.Conv2d(layer.channels, layer.outputs, layer.window, layer.stride, layer.window // 2)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.requires_grad_(False).eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """relu(conv(images))"""
        return torch.relu(self.conv(images))


def _packed(module: nn.Module, inputs: Inputs) -> Call:
    """oneDNN's convolution with relu over weights that it packed beforehand."""
    assert isinstance(module, Convolution)
    (x,), conv = inputs, module.conv
    padding, stride, dilation = ([int(side) for side in sides] for sides in (conv.padding, conv.stride, conv.dilation))
    mkldnn = torch.ops.mkldnn
    if not hasattr(mkldnn, "_convolution_pointwise"):
        raise NotMeasuredError("torch was built without oneDNN")
    with onednn_packs():
        weight = mkldnn._reorder_convolution_weight(conv.weight, padding, stride, dilation, 1, list(x.shape))
    return lambda: mkldnn._convolution_pointwise(x, weight, conv.bias, padding, stride, dilation, 1, "relu", [], "")


def _channels_first(module: nn.Module, inputs: Inputs) -> Call:
    """The module on memory with channels first."""
    first = module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    images = inputs[0].contiguous()
    return lambda: first(images)


def _cases(quick: bool) -> Iterator[Case]:
    if quick:
        for dtype in DTYPES:
            yield Case(Layer(9, 5, 19, 3, 2), 2, dtype)
            yield Case(Layer(8, 16, 33, 1), 1, dtype, f"ResNet-50's layers {dtype}, batch 1")
        return
    for dtype in DTYPES:
        for batch in BATCHES:
            for layer in RESNET_50:
                yield Case(layer, batch, dtype, f"ResNet-50's layers {dtype}, batch {batch}")
        for layer in LARGE:
            yield Case(layer, 1, dtype)


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    return [case.job() for case in _cases(quick)]
