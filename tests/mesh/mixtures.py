"""Mixtures of experts of whole numbers: a loop over tokens in torch, one process and meshes, of which all give the same
bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tessera import Tensor, dist, grad, op

TOKENS, WIDTH, HIDDEN, EXPERTS = 24, 4, 6, 4


def numbers() -> tuple[torch.Tensor, ...]:
    """Tokens, a router, and two matrices of each expert; small whole numbers. No two scores of a token are equal."""
    draw = torch.Generator().manual_seed(7)
    shapes = ((TOKENS, WIDTH), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH))
    x, up, down = (torch.randint(-2, 3, shape, generator=draw).float() for shape in shapes)
    ranks = torch.stack([torch.randperm(EXPERTS, generator=draw) for _ in range(WIDTH)]).float()
    return x, ranks + torch.arange(EXPERTS) * 0.125, up, down


def feed_forward(rows: Any, up: Any, down: Any) -> Any:
    """A layer of each expert."""
    return op.matmul(op.relu(op.matmul(rows, up)), down)


def mixture(x: Any, router: Any, up: Any, down: Any, **options: Any) -> Tensor:
    """The two best experts of each token, weighted by their scores."""
    return op.moe(x, router, lambda rows: feed_forward(rows, up, down), weighting="scores", **options)


def by_loop(
    x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor, capacity: float | None, groups: int
) -> torch.Tensor:
    """The same, choice by choice and token by token."""
    made = torch.zeros_like(x)
    size = len(x) // groups
    limit = size if capacity is None else min(size, max(1, math.ceil(2 * size * capacity / EXPERTS)))
    for first in range(0, len(x), size):
        scores, chosen = (x[first : first + size] @ router).topk(2)
        taken = [0] * EXPERTS
        for choice in range(2):
            for token in range(size):
                expert = int(chosen[token, choice])
                taken[expert] += 1
                if taken[expert] <= limit:
                    row = (x[first + token] @ up[expert]).relu() @ down[expert]
                    made[first + token] += scores[token, choice] * row
    return made


def _loss(values: Sequence[Any], weights: Any, options: dict[str, Any]) -> Any:
    return op.sum(mixture(*values, **options) * weights)


def fault_of(mesh: dist.Mesh, split: tuple[str, ...], capacity: float | None) -> str | None:
    """What is wrong with a mixture on a mesh with an axis "ep", whose axes `split` split the tokens; None where nothing
    is.
    """
    wholes = numbers()
    groups = math.prod(mesh.shape[axis] for axis in split)
    options = {"capacity": capacity, "groups": groups}
    over = "tp" if "tp" in mesh.shape and "tp" not in split else None
    specs = (
        dist.ShardSpec((0,), (split,)) if split else None,
        None,
        dist.ShardSpec((0, 2) if over else (0,), ("ep", over) if over else ("ep",)),
        dist.ShardSpec((0, 1) if over else (0,), ("ep", over) if over else ("ep",)),
    )
    weights = (torch.arange(wholes[0].numel()) % 5 - 2).reshape(wholes[0].shape).float()
    here = [op.tensor(whole) for whole in wholes]
    there = [dist.distribute(whole, spec, mesh) for whole, spec in zip(wholes, specs, strict=True)]
    places = tuple(range(len(wholes)))
    one = [mixture(*here, **options), *grad.grad(lambda *v: _loss(v, op.tensor(weights), options), places)(*here)]
    laid = dist.distribute(weights, specs[0], mesh)
    many = [mixture(*there, **options), *grad.grad(lambda *v: _loss(v, laid, options), places)(*there)]
    for name, alone, shared in zip(("result", "x", "router", "up", "down"), one, many, strict=True):
        if not torch.equal(alone.torch(), shared.full().torch()):
            return f"{name} on {mesh}, tokens over {split}:\n{shared.full()}\none process:\n{alone}"
    return None


def nested(x: Any, router: Any, inner_router: Any, inner: Any, **options: Any) -> Tensor:
    """A mixture whose experts are mixtures, on the axes "ep" and "tp"."""

    def experts(rows: Any) -> Tensor:
        return op.moe(rows, inner_router, inner, axis="tp", top_k=1, weighting="scores", batch=1, groups=2, **options)

    return op.moe(x, router, experts, axis="ep", weighting="scores", groups=4, **options)


def nested_fault_of(mesh: dist.Mesh, capacity: float | None) -> str | None:
    """What is wrong with a mixture of mixtures on a mesh of two by two devices; None where nothing is."""
    x, router, up, _ = numbers()
    wholes = x, router, up[..., :3], torch.stack([up[..., :5] * n for n in range(1, 4)], 1)
    specs = (
        dist.ShardSpec((0,), (("tp", "ep"),)),
        None,
        dist.ShardSpec((0,), ("ep",)),
        dist.ShardSpec((0, 1), ("ep", "tp")),
    )

    def results(values: Sequence[Any]) -> list[Any]:
        def loss(*values: Any) -> Any:
            return op.sum(nested(*values, capacity=capacity))

        return [nested(*values, capacity=capacity), *grad.grad(loss, tuple(range(len(values))))(*values)]

    one = results([op.tensor(whole) for whole in wholes])
    many = results([dist.distribute(whole, spec, mesh) for whole, spec in zip(wholes, specs, strict=True)])
    for name, alone, shared in zip(("result", "x", "router", "inner router", "inner"), one, many, strict=True):
        if not torch.equal(alone.torch(), shared.full().torch()):
            return f"{name}:\n{shared.full()}\none process:\n{alone}"
    return None
