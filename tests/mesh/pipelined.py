"""Steps of training in stages, against one process: losses and gradients of whole numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera import Tensor, dist, grad, op

WIDTH, ROWS = 4, 8
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2), ("interleaved", 3))
MANNERS = ("plain", "tuples", "sharded")


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    """Small whole numbers, the same for one seed; most are 0, so that products of many stay exact."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randint(-1, 2, shape, generator=draw) * torch.randint(0, 2, shape, generator=draw)).float()


def layer(weights: Any, x: Any) -> Tensor:
    """A stage that hands on a tensor."""
    made: Tensor = op.relu(op.matmul(x, weights["w"]) + weights["b"]) - x
    return made


def layer_of_two(weights: Any, read: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A stage that hands on a hidden state, what skips stages, and whole numbers, which have no cotangent."""
    x, skipped, count = read
    hidden = op.matmul(x, weights["w"].T) + weights["b"]
    return op.where(count > 1, op.relu(hidden), hidden), skipped + 0.5 * hidden, count + 1


def loss(made: Any, wanted: Tensor) -> Tensor:
    """The mean of squares, also of what skipped stages."""
    parts = list(made) if isinstance(made, tuple | list) else [made]
    value: Tensor = op.sum((parts[0] - wanted) ** 2) / 64
    return value + op.sum(parts[1]) / 16 if len(parts) > 1 else value


def fault_of(mesh: dist.Mesh, schedule: str, chunks: int, manner: str, steps: int = 1) -> str | None:
    """What is wrong with a step on a mesh with an axis "pp"; None where nothing is."""
    count = mesh.shape["pp"] * chunks
    stage = layer_of_two if manner == "tuples" else layer
    numbers = [(whole_numbers(WIDTH, WIDTH, seed=n), whole_numbers(WIDTH, seed=100 + n)) for n in range(count)]
    x, wanted = whole_numbers(ROWS, WIDTH, seed=200), whole_numbers(ROWS, WIDTH, seed=201)
    alone = [{"w": op.tensor(w), "b": op.tensor(b)} for w, b in numbers]
    value, gradients = one_process(stage, alone, _batch(op.tensor(x), manner), op.tensor(wanted))
    step = dist.pipeline([stage] * count, mesh, microbatches=4, schedule=schedule, loss=loss, reduction="sum")
    weights = [_weights(step, number, manner, *numbers[number]) for number in range(count)]
    batch, targets = x, wanted
    if manner == "sharded":
        rows = dist.ShardSpec((0,), ("dp",))
        batch, targets = (dist.distribute(each, rows, mesh) for each in (x, wanted))  # type: ignore[assignment]
    for _ in range(steps):
        found, own = step(weights, _batch(op.tensor(batch), manner), targets)
        if found != value:
            return f"{schedule}, {manner}: the loss is {found}, not {value}"
        for number in step.stages:
            for name in ("w", "b"):
                here, there = gradients[number][name].torch(), own[number][name].full().torch()
                if not torch.equal(here, there):
                    return f"{schedule}, {manner}: the gradient by {name} of stage {number} is {there}, not {here}"
        if any(own[number] is not None for number in range(count) if number not in step.stages):
            return "gradients of other ranks' stages"
    return None


def one_process(
    stage: Any, weights: Sequence[Any], batch: Any, wanted: Tensor
) -> tuple[float, list[dict[str, Tensor]]]:
    """The loss and the gradients without a mesh."""

    def composed(*leaves: Tensor) -> Tensor:
        made = batch
        for number in range(len(weights)):
            made = stage({"w": leaves[2 * number], "b": leaves[2 * number + 1]}, made)
        return loss(made, wanted)

    given = [each[name] for each in weights for name in ("w", "b")]
    value, found = grad.value_and_grad(composed, tuple(range(len(given))))(*given)
    return float(value.item()), [{"w": found[2 * n], "b": found[2 * n + 1]} for n in range(len(weights))]


def _batch(x: Tensor, manner: str) -> Any:
    return (x, 2 * x, op.tensor(torch.arange(ROWS).reshape(ROWS, 1) % 3)) if manner == "tuples" else x


def _weights(step: dist.Pipeline, number: int, manner: str, w: torch.Tensor, b: torch.Tensor) -> Any:
    if number not in step.stages:
        return None
    if manner != "sharded":
        return {"w": op.tensor(w), "b": op.tensor(b)}
    mesh = step.mesh(number)
    columns = dist.ShardSpec(("col",), ("tp",))
    return {"w": dist.distribute(w, columns, mesh), "b": dist.distribute(b, None, mesh)}
