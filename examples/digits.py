"""A classifier of handwritten digits: trained with torch, run as one Tessera kernel.

The data are the 1797 scans of 8 x 8 pixels that come with scikit-learn (E. Alpaydin and C. Kaynak, "Optical Recognition
of Handwritten Digits", UCI Machine Learning Repository, 1998). The whole inference, three layers and the choice of the
class, is one `@op.kernel`; its predictions equal torch's on every image.

Run it: ``python examples/digits.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import tessera
from tessera import op
from tessera.typing import Operand

HIDDEN = (256, 128)
EPOCHS = 40
BATCH = 64
LEARNING_RATE = 2e-3
TRAINED_SHARE = 0.75
SEED = 0


@dataclass(frozen=True)
class Report:
    """What the example found. Accuracy is the share of unseen images classified rightly; times are medians."""

    images: int
    accuracy: float
    torch_ms: float
    tessera_ms: float


@op.kernel
def classify(
    images: Operand,
    w1: Operand,
    b1: Operand,
    w2: Operand,
    b2: Operand,
    w3: Operand,
    b3: Operand,
) -> tessera.Tensor:
    """The class (N,) of each of N images (N, 64)."""
    hidden = op.gelu(images @ w1 + b1)
    hidden = op.relu(hidden @ w2 + b2)
    return op.argmax(op.softmax(hidden @ w3 + b3), axis=-1)


def load() -> tuple[Tensor, Tensor]:
    """All images (1797, 64), pixels from 0 to 1, and their classes (1797,), shuffled."""
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(SEED))
    images = torch.from_numpy(pixels).to(torch.float32) / 16.0
    return images[order], torch.from_numpy(classes)[order]


def train(images: Tensor, classes: Tensor) -> nn.Sequential:
    """A network of three layers, trained on `images`."""
    torch.manual_seed(SEED)
    first, second = HIDDEN
    network = nn.Sequential(
        nn.Linear(images.shape[1], first), nn.GELU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(images)), BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(network(images[batch]), classes[batch]))
            optimizer.step()
    return network.eval()


def parameters(network: nn.Sequential) -> list[Tensor]:
    """The network's weights and biases as the kernel takes them: each weight (inputs, outputs), without a copy."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [tensor for layer in layers for tensor in (layer.weight.detach().t(), layer.bias.detach())]


def medians_ms(calls: list[Callable[[], object]], rounds: int = 40) -> list[float]:
    """The median milliseconds of each call; the calls take turns, so that a slow moment hits all of them."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, seconds, strict=True):
            time.sleep(0.01)  # torch's idle threads spin for some milliseconds
            call()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [1e3 * statistics.median(times) for times in seconds]


def main(write: Callable[[str], None] = print) -> Report:
    """Trains, compares the predictions on every image, times both, and writes what it found.

    Raises AssertionError when a prediction differs from torch's.
    """
    images, classes = load()
    trained = int(TRAINED_SHARE * len(images))
    network = train(images[:trained], classes[:trained])
    weights = parameters(network)

    def with_torch() -> Tensor:
        with torch.no_grad():
            return torch.softmax(network(images), -1).argmax(-1)

    def with_tessera() -> tessera.Tensor:
        found: tessera.Tensor = classify(images, *weights)
        return found.eval()

    expected, predicted = with_torch(), with_tessera().torch()
    assert torch.equal(predicted, expected), f"{int((predicted != expected).sum())} predictions differ from torch's"
    accuracy = float((predicted[trained:] == classes[trained:]).double().mean())
    torch_ms, tessera_ms = medians_ms([with_torch, with_tessera])
    write(f"digits: {len(images)} images, all {len(images)} predictions equal to torch's")
    write(f"digits: accuracy on the {len(images) - trained} images not trained on: {accuracy:.1%}")
    write(f"digits: torch {torch_ms:.3f} ms, tessera {tessera_ms:.3f} ms, ratio {torch_ms / tessera_ms:.2f}")
    return Report(len(images), accuracy, torch_ms, tessera_ms)


if __name__ == "__main__":
    main()
