"""Depthwise convolutions of mobile networks, NCHW and channels-last, and pools, as torch's users call them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bench.jobs.job import Call, Inputs, Job, Peer
from tessera import op

SEED = 47
GOAL = 1.5
"""The best peer's time / ours; channels-last torch among the peers."""
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One depthwise convolution of images [batch, channels, side, side] with kernels of `size`."""

    batch: int
    channels: int
    side: int
    size: int = 3
    stride: int = 1
    layout: str = "NCHW"
    dtype: str = "fp32"

    @property
    def name(self) -> str:
        """What the tables show."""
        images = f"{self.batch} x {self.channels} x {self.side} x {self.side}"
        step = f" stride {self.stride}" if self.stride > 1 else ""
        return f"depthwise {self.dtype} {self.size} x {self.size}{step} of {images} {self.layout}"

    def inputs(self) -> Inputs:
        """Images of standard-normal values, in memory of the layout."""
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(self.batch, self.channels, self.side, self.side, generator=generator).to(DTYPES[self.dtype])
        return (x if self.layout == "NCHW" else x.to(memory_format=torch.channels_last),)

    def module(self) -> nn.Module:
        """Torch's grouped convolution, its weights frozen."""
        torch.manual_seed(SEED)
        padding, groups = self.size // 2, self.channels
        made = nn.Conv2d(self.channels, self.channels, self.size, self.stride, padding, groups=groups, bias=False)
        made = made.to(DTYPES[self.dtype])
        return made.to(memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload,no-any-return]

    def ours(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's."""
        (x,) = inputs
        assert isinstance(module.weight, torch.Tensor)
        weight = op.constant(module.weight.contiguous())
        return lambda: op.depthwise_conv2d(x, weight, stride=self.stride, padding=self.size // 2).eval()

    def job(self) -> Job:
        """The case as the bench runs it."""
        out = self.side // self.stride
        pixels = self.batch * self.channels * out * out
        other = torch.channels_last if self.layout == "NCHW" else torch.contiguous_format

        def converted(module: nn.Module, inputs: Inputs) -> Call:
            x = inputs[0].contiguous(memory_format=other)
            return lambda: module(x)

        return Job(
            name=self.name,
            goal=GOAL,
            inputs=self.inputs,
            module=self.module,
            ours=self.ours,
            tolerance=TOLERANCE[self.dtype],
            peers={"channels last" if self.layout == "NCHW" else "contiguous": Peer(converted)},
            flops=2 * self.size * self.size * pixels,
            bytes=(self.batch * self.channels * self.side**2 + pixels) * DTYPES[self.dtype].itemsize,
            dtype=self.dtype,
            copy_bound=True,
        )


def _cases(quick: bool) -> Iterator[Case]:
    if quick:
        yield Case(1, 8, 14)
        yield Case(1, 8, 14, layout="NHWC", size=5)
        return
    for batch, channels, side in ((1, 256, 112), (8, 512, 28)):
        for size in (3, 5, 7):
            yield Case(batch, channels, side, size)
        yield Case(batch, channels, side, 3, 2)
        for size in (3, 5, 7):
            yield Case(batch, channels, side, size, layout="NHWC")
    yield Case(1, 256, 112, dtype="bf16")


def jobs(quick: bool) -> list[Job]:
    """All depthwise convolutions; with `quick` two small ones."""
    return [case.job() for case in _cases(quick)]
