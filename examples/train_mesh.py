"""A network that learns to write Python's documentation, character by character, over data- and tensor-parallel ranks.

tessera run --ranks 4 examples/train_mesh.py --steps 200
torchrun --nproc-per-node 2 examples/train_mesh.py
python examples/train_mesh.py

Nothing here says what ranks exchange: two layouts do. The batch is split over "dp"; the first layer's columns and the
second one's rows over "tp". One rank is a mesh of one device, with the same losses but for the order of sums.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data import topics

import torch

from tessera import Tensor, dist, grad, op

CONTEXT, HIDDEN, BATCH = 8, 128, 64
CHARACTERS = "\n " + "".join(map(chr, range(ord("!"), ord("~") + 1)))
RATE = 0.5


def text() -> torch.Tensor:
    """The chapters of Python's reference that come with it, as numbers of characters."""
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    whole = "".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor([numbers[character] for character in whole if character in numbers])


def batch(data: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters as rows of zeros and a one, and those that come after them; the same of one step on every rank."""
    starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step))
    read = torch.stack([data[start : start + CONTEXT] for start in starts.tolist()])
    follows = data[starts + CONTEXT]
    rows = torch.nn.functional.one_hot(read, len(CHARACTERS)).float().reshape(BATCH, -1)
    return rows, torch.nn.functional.one_hot(follows, len(CHARACTERS)).float()


def loss(up: Tensor, down: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
    """The mean surprise at the characters that follow, in nats."""
    logits = op.matmul(op.relu(op.matmul(x, up)), down)
    made: Tensor = op.mean(op.logsumexp(logits, axis=-1) - op.sum(logits * wanted, axis=-1))
    return made


def train(steps: int) -> list[float]:
    """The loss at every step; the same on every rank."""
    mesh = dist.Mesh(["dp", "tp"])
    rows = dist.ShardSpec((0,), ("dp",))
    inputs, outputs = CONTEXT * len(CHARACTERS), len(CHARACTERS)
    up = dist.tensor((inputs, HIDDEN), dist.ShardSpec(("col",), ("tp",)), mesh, seed=1) * (1 / CONTEXT**0.5)
    down = dist.tensor((HIDDEN, outputs), dist.ShardSpec(("row",), ("tp",)), mesh, seed=2) * (1 / HIDDEN**0.5)
    data, losses = text(), []
    step_of = grad.value_and_grad(loss, (0, 1))
    for step in range(steps):
        x, wanted = (dist.distribute(each, rows, mesh) for each in batch(data, step))
        value, (by_up, by_down) = step_of(up.eval(), down.eval(), x, wanted)
        up, down = up - RATE * by_up, down - RATE * by_down
        losses.append(float(value.item()))
    return losses


def main() -> None:
    """Trains, and says what it came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    begun = time.perf_counter()
    losses = train(steps)
    mesh = dist.Mesh(["dp", "tp"])
    if all(place == 0 for place in mesh.coordinates.values()):
        seconds = time.perf_counter() - begun
        print(
            f"{mesh}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {steps} steps, {1e3 * seconds / steps:.1f} ms a step"
        )


if __name__ == "__main__":
    main()
