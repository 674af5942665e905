"""Convolutions with large windows: what the cost model makes of them, against torch's and against our own direct ones.

The goal is against both: the direct kernels of Tessera, which a deterministic policy asks for, are a peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bench.jobs.job import Call, Inputs, Job, Peer
from tessera import numerics, op

SEED = 53
GOAL = 1.3
"""The time of the best direct convolution, torch's or ours / ours through transforms."""
LARGE = 31
"""The window from which the goal holds."""
DIRECT = "our direct"
LAST = "channels last"
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """A convolution that keeps the size of its square images, with a square window; depthwise where `groups` are the
    channels.
    """

    batch: int
    channels: int
    outputs: int
    side: int
    window: int
    groups: int = 1

    @property
    def name(self) -> str:
        """What the tables show."""
        kind = "depthwise" if self.groups == self.channels else "dense"
        return f"{kind} {self.window} x {self.window} of {self.batch} x {self.channels} x {self.side} x {self.side}" + (
            f" to {self.outputs}" if self.groups == 1 else ""
        )

    def inputs(self) -> Inputs:
        """Images of standard-normal values."""
        generator = torch.Generator().manual_seed(SEED)
        return (torch.randn(self.batch, self.channels, self.side, self.side, generator=generator),)

    def module(self) -> nn.Module:
        """Torch's, frozen."""
        torch.manual_seed(SEED)
        padding = self.window // 2
        made = nn.Conv2d(self.channels, self.outputs, self.window, 1, padding, groups=self.groups, bias=False)
        return made.eval().requires_grad_(False)

    def ours(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's convolution, computed as its cost model thinks best."""
        (x,) = inputs
        assert isinstance(module.weight, torch.Tensor)
        weight, padding = op.constant(module.weight), self.window // 2
        if self.groups == self.channels:
            return lambda: op.depthwise_conv2d(x, weight, padding=padding).eval()
        return lambda: op.conv2d(x, weight, padding=padding).eval()

    def direct(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's convolution without transforms, which a deterministic policy asks for."""
        call = self.ours(module, inputs)

        def computed() -> object:
            with numerics.policy("deterministic"):
                return call()

        return computed

    def spectral(self, module: nn.Module, inputs: Inputs) -> Call:
        """`op.spectral_conv`, whatever the model thinks."""
        (x,) = inputs
        assert isinstance(module.weight, torch.Tensor)
        weight, padding, groups = op.constant(module.weight), self.window // 2, self.groups
        return lambda: op.spectral_conv(x, weight, padding=padding, groups=groups).eval()

    def job(self) -> Job:
        """The case as the bench runs it."""
        pixels = self.batch * self.side**2
        taps = self.window**2 * self.channels // self.groups
        numbers = pixels * (self.channels + self.outputs) + self.outputs * taps
        return Job(
            name=self.name,
            goal=GOAL if self.window >= LARGE else None,
            inputs=self.inputs,
            module=self.module,
            ours=self.ours,
            tolerance=TOLERANCE,
            peers={LAST: Peer(_channels_last), DIRECT: Peer(self.direct, "tessera")},
            flops=2 * pixels * self.outputs * taps,
            bytes=4 * numbers,
            variants={"spectral": self.spectral},
        )


def _channels_last(module: nn.Module, inputs: Inputs) -> Call:
    """Torch's with images and weights in the format that it is fastest in."""
    x = inputs[0].to(memory_format=torch.channels_last)
    turned = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda: turned(x)


def _cases(quick: bool) -> Iterator[Case]:
    if quick:
        yield Case(1, 6, 6, 20, 13, groups=6)
        yield Case(1, 3, 4, 16, 9)
        return
    yield Case(1, 64, 64, 112, 31, groups=64)
    yield Case(8, 256, 256, 28, 31, groups=256)
    yield Case(1, 96, 96, 56, 31, groups=96)
    yield Case(1, 3, 16, 112, 31)
    yield Case(1, 8, 8, 112, 31)
    yield Case(1, 96, 96, 56, 13, groups=96)
    yield Case(1, 16, 16, 56, 15)
    yield Case(4, 32, 32, 28, 9)


def jobs(quick: bool) -> list[Job]:
    """All convolutions with large windows; with `quick` two small ones."""
    return [case.job() for case in _cases(quick)]
