"""New sizes compile no new kernels: a few serve all that a program is called with, in every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import op
from tessera.backend.contract import KernelObject
from tessera.backend.llvm import backend
from tessera.handle import Tensor
from tessera.target import Target

SIZES = (8, 9, 10, 11, 13, 16, 17, 20, 23, 31)
"""Ten: primes, powers of two, and neighbours of either."""

F = torch.nn.functional
Case = Callable[[int], tuple[Tensor, torch.Tensor]]
"""Gives what is computed for a size, not yet evaluated, and what torch makes of it in float64."""


@contextmanager
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleOp]]:
    """The kernels that are compiled inside the `with`."""
    found: list[ModuleOp] = []
    compile_ = backend._compile

    def counting(module: ModuleOp, target: Target) -> KernelObject:
        found.append(module)
        return compile_(module, target)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_compile", counting)
        yield found


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolution(
    rows: int,
    columns: int,
    images: int = 1,
    depth: int = 6,
    side: int = 3,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> tuple[Tensor, torch.Tensor]:
    x = normal(images, depth, rows, columns).contiguous(memory_format=torch.channels_last)
    w = normal(20, depth, side, side) / (side * depth**0.5)
    wanted = F.conv2d(x.double(), w.double(), None, stride, padding, dilation).relu()
    return op.relu(op.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)), wanted


CONVOLUTIONS: dict[str, tuple[int, Case]] = {
    "squares": (3, lambda n: convolution(n, n, padding=1)),
    "narrow images": (4, lambda n: convolution(40 - n, n - 7, padding=0, side=1, stride=2)),
    "wide images": (3, lambda n: convolution(9, 5 * n, padding=2, dilation=2)),
    "one row": (3, lambda n: convolution(1, n, padding=1)),
    "pixels by channels": (3, lambda n: convolution(n, n + 1, side=1)),
    "batches": (3, lambda n: convolution(9, n, images=n - 7, padding=1)),
    "strides": (3, lambda n: convolution(n, n, stride=2, padding=3, side=7, depth=3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_images_of_all_sizes_share_kernels(name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, case = CONVOLUTIONS[name]
    with compilations(monkeypatch) as compiled:
        for size in SIZES:
            pending, wanted = case(size)
            torch.testing.assert_close(pending.torch().double(), wanted, rtol=1e-4, atol=1e-4)
    assert len(compiled) <= most
