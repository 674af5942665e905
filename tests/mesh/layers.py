"""Layers that drawn expressions end in: experts that are pinned to parts of a mesh, and filters of long signals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tessera import dist, op


class Layer(Protocol):
    """What is made of values by number."""

    @property
    def operator(self) -> str:
        """What it is."""

    @property
    def operands(self) -> tuple[int, ...]:
        """The values."""

    def made(self, values: Sequence[Any], mesh: dist.Mesh | None) -> Any:
        """The result, on a mesh or on this device."""


@dataclass(frozen=True)
class LongFilter:
    """A transform of a vector and its inverse, with so many factors between."""

    operands: tuple[int]
    factors: int
    operator = "long filter"

    def made(self, values: Sequence[Any], mesh: dist.Mesh | None) -> Any:
        """See `Layer`."""
        spectrum = op.fft(values[0])
        for _ in range(self.factors - 1):
            spectrum = spectrum * 2.0 + spectrum
        return spectrum if self.factors == 2 else op.ifft(spectrum)


@dataclass(frozen=True)
class PinnedExperts:
    """Experts over the rows of a value, `own` on each of some equal parts of the mesh along its first axis: the best of
    each token. Weights are whole numbers, and so are scores.
    """

    operands: tuple[int]
    rows: tuple[int, int]
    parts: int
    own: int
    seed: int
    operator = "pinned experts"

    @classmethod
    def drawn(cls, chance: random.Random, operand: int, shape: tuple[int, ...], devices: int) -> PinnedExperts:
        """Of a value of this shape, on so many devices along the first axis."""
        parts = chance.choice([n for n in range(1, devices + 1) if devices % n == 0])
        own = chance.choice((1, 1, 2))
        rows = (math.prod(shape[:-1]), shape[-1])
        return cls((operand,), rows, parts, own, chance.getrandbits(32))

    def made(self, values: Sequence[Any], mesh: dist.Mesh | None) -> Any:
        """See `Layer`."""
        draw = torch.Generator().manual_seed(self.seed)
        width, count = self.rows[1], self.parts * self.own

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randint(-2, 3, shape, generator=draw).double()

        axis = "x" if mesh is None else mesh.axes[0]
        router = numbers(width, count)
        experts: list[Any] = []
        for number in range(count):
            weights = numbers(width, 3), numbers(3, 2)
            if mesh is None:
                experts.append(_expert(number, *map(op.tensor, weights)))
                continue
            run = mesh.shape[axis] // self.parts
            first = number // self.own * run
            part = mesh[axis, first : first + run]
            laid = [op.constant(dist.distribute(each, None, part)) for each in weights]
            experts.append(dist.pin(_expert(number, *laid), part))
        there = op.tensor(router) if mesh is None else dist.distribute(router, None, mesh)
        tokens = (values[0] * 1.0).reshape(self.rows)  # gradients follow no views of inputs
        return op.moe(tokens, there, experts, axis=axis, top_k=1, weighting="scores", capacity=None, groups=1)


def _expert(number: int, up: Any, down: Any) -> Any:
    """Experts that are different functions."""
    if number % 2:
        return lambda rows: op.matmul(op.relu(op.matmul(rows, up)), down)
    return lambda rows: op.matmul(op.matmul(rows, up) + 1.0, down) * 2.0
