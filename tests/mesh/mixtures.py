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


def expert_of(number: int, weights: Sequence[Any]) -> Any:
    """Experts that are different functions: two matrices, or one and what it reads."""
    if number % 2:
        return lambda rows: op.matmul(rows, weights[0]) + rows
    return lambda rows: op.matmul(op.relu(op.matmul(rows, weights[0])), weights[1]) * 2.0


def pinned_fault_of(
    mesh: dist.Mesh, pins: Sequence[dist.Mesh], split: tuple[str, ...], capacity: float | None
) -> str | None:
    """What is wrong with a mixture of different functions, pinned to parts of a mesh with an axis "ep", whose axes
    `split` split the tokens; None where nothing is. Weights lie on the parts, split along an axis "tp".
    """
    x, router, up, down = numbers()
    wide = [n + 3 for n in range(EXPERTS)]
    own = [
        [up[n, :, :1].repeat(1, wide[n]), down[n, :1].repeat(wide[n], 1)] if n % 2 == 0 else [up[n, :, :WIDTH]]
        for n in range(EXPERTS)
    ]
    loss_weights = (torch.arange(x.numel()) % 5 - 2).reshape(x.shape).float()
    groups = math.prod(mesh.shape[axis] for axis in split)

    def results(values: Sequence[Any], weights: Any, on: Sequence[dist.Mesh] | None) -> list[Any]:
        def layer(x: Any, router: Any, *flat: Any) -> Any:
            rest = iter(flat)
            experts = [expert_of(n, [next(rest) for _ in each]) for n, each in enumerate(own)]
            pinned = experts if on is None else [dist.pin(*each) for each in zip(experts, on, strict=True)]
            return op.moe(x, router, pinned, weighting="scores", capacity=capacity, groups=groups)

        gradients = grad.grad(lambda *v: op.sum(layer(*v) * weights), tuple(range(len(values))))(*values)
        return [layer(*values), *gradients]

    tokens = dist.ShardSpec((0,), (split,)) if split else None
    there = [dist.distribute(x, tokens, mesh), dist.distribute(router, None, mesh)]
    for n, each in enumerate(own):
        for place, whole in enumerate(each):
            over = dist.ShardSpec((1 - place,), ("tp",)) if n % 2 == 0 and "tp" in mesh.shape else None
            there.append(dist.distribute(whole, over, pins[n]))
    one = results(
        [op.tensor(whole) for whole in (x, router, *(w for each in own for w in each))], op.tensor(loss_weights), None
    )
    many = results(there, dist.distribute(loss_weights, tokens, mesh), pins)
    names = [
        "result",
        "x",
        "router",
        *(f"weight {place} of {n}" for n, each in enumerate(own) for place in range(len(each))),
    ]
    for name, alone, shared in zip(names, one, many, strict=True):
        if shared.mesh.is_elsewhere:
            shared.eval()
        elif not torch.equal(alone.torch(), shared.full().torch()):
            return f"{name} on {mesh}, pinned to {pins}, tokens over {split}:\n{shared.full()}\none process:\n{alone}"
    return None
