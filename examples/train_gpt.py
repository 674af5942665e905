"""A small GPT that learns to write Python's documentation, character by character: trained by `torch.compile`.

The text is the language reference that comes with Python itself (the module `pydoc_data.topics`). Model and optimizer
are torch's; `torch.compile(..., backend="tessera")` makes a plan of the forward pass, of the backward pass and of the
optimizer's step. The same model, trained eagerly beside it on the same text, takes its steps in turn with it.

Run it: ``python examples/train_gpt.py``. It writes train_gpt.png, the losses of both.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import tessera.torch  # noqa: F401 - torch then knows the backend in a tree that was not installed

WIDTH, HEADS, LAYERS = 128, 4, 2
LENGTH, BATCH = 64, 16
STEPS = 300
LEARNING_RATE = 1e-3
FIRST_TIMED = 10
"""Steps before this one compile, or come soon after: they are trained with, and not timed."""


@dataclass(frozen=True)
class Report:
    """What the training came to: losses by step, and the median times of one step."""

    losses: tuple[float, ...]
    eager_losses: tuple[float, ...]
    step_ms: float
    eager_ms: float
    sample: str


class Block(nn.Module):
    """A transformer's block, normalized before attention and before the layers that follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x of [batch, length, WIDTH], as its result."""
        batch, length, _ = x.shape
        parts = self.joint(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        result: Tensor = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return result


class Gpt(nn.Module):
    """Logits of the next character: [batch, length] -> [batch, length, characters]."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, text: Tensor) -> Tensor:
        """The logits."""
        x = self.tokens(text) + self.places(torch.arange(text.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def text_as_numbers() -> tuple[Tensor, str]:
    """The documentation as numbers of characters, and the characters."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = "".join(sorted(set(text)))
    numbers = {character: number for number, character in enumerate(characters)}
    return torch.tensor([numbers[character] for character in text]), characters


def trainer(model: Gpt, backend: str | None) -> Callable[[Tensor], float]:
    """A function that takes one step on windows of text, [BATCH, LENGTH + 1], and gives the loss before it."""

    def loss_of(windows: Tensor) -> Tensor:
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=True)
    loss, update = loss_of, optimizer.step
    if backend is not None:
        loss = torch.compile(loss_of, backend=backend)
        update = torch.compile(optimizer.step, backend=backend)

    def step(windows: Tensor) -> float:
        optimizer.zero_grad(set_to_none=False)
        found = loss(windows)
        torch.autograd.backward(found)
        update()
        return float(found.detach())

    return step


def written_by(model: Gpt, characters: str, count: int) -> str:
    """What the model writes, one character after the other, each drawn by its probability."""
    text = torch.tensor([[characters.index("\n")]])
    with torch.no_grad():
        for _ in range(count):
            chances = torch.softmax(model(text[:, -LENGTH:])[0, -1], -1)
            text = torch.cat([text, torch.multinomial(chances, 1)[None]], 1)
    return "".join(characters[number] for number in text[0].tolist())


def train(steps: int = STEPS) -> Report:
    """Trains the model, compiled and eagerly, on the same windows in the same order."""
    torch.manual_seed(0)
    text, characters = text_as_numbers()
    model = Gpt(len(characters))
    eager = copy.deepcopy(model)
    step, eager_step = trainer(model, "tessera"), trainer(eager, None)
    losses: list[float] = []
    eager_losses: list[float] = []
    times: list[float] = []
    eager_times: list[float] = []
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=steps, loss="")
        for _ in range(steps):
            starts = torch.randint(len(text) - LENGTH - 1, (BATCH,))
            windows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
            for take, found, taken in ((step, losses, times), (eager_step, eager_losses, eager_times)):
                begin = time.perf_counter()
                found.append(take(windows))
                taken.append(time.perf_counter() - begin)
            progress.update(task, advance=1, loss=f"loss {losses[-1]:.3f}")
    return Report(
        tuple(losses),
        tuple(eager_losses),
        1e3 * statistics.median(times[FIRST_TIMED:] or times),
        1e3 * statistics.median(eager_times[FIRST_TIMED:] or eager_times),
        written_by(model, characters, 200),
    )


def plot(report: Report, path: Path) -> Path:
    """Draws the losses, and gives the path of the picture."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(report.eager_losses, label=f"eager, {report.eager_ms:.1f} ms a step", linewidth=3, alpha=0.4)
    axes.plot(report.losses, label=f"tessera, {report.step_ms:.1f} ms a step", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of a character")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def main() -> None:
    """Trains, prints what it came to and writes the picture."""
    report = train()
    print(report.sample)
    print(f"\nloss {report.losses[0]:.3f} -> {report.losses[-1]:.3f}, eager {report.eager_losses[-1]:.3f}")
    print(f"a step: eager {report.eager_ms:.2f} ms, tessera {report.step_ms:.2f} ms", end=", ")
    print(f"ratio {report.eager_ms / report.step_ms:.2f}")
    print(f"wrote {plot(report, Path('train_gpt.png'))}")


if __name__ == "__main__":
    main()
