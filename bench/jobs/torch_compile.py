"""Models as their users wrote them, through `torch.compile(model, backend="tessera")`: GPT-2 and ResNet-50 with random
weights, and one layer, which shows what a call costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.jobs.blocks import SEED
from bench.jobs.job import Call, Inputs, Job
from bench.results import Goal
from examples import gpt2, resnet50

GOALS = (
    Goal("eager", ("eager", "eager_unlocked"), 1.0),
    Goal("torch.compile", ("compiled", "compiled_unlocked"), 1.0),
)


def through_tessera(module: nn.Module, inputs: Inputs) -> Call:
    """A call of what a user's one line gives."""
    import tessera.torch  # noqa: F401 - makes torch know the backend

    torch._dynamo.reset()
    compiled = torch.compile(module, backend="tessera", dynamic=False)

    def call() -> object:
        with torch.no_grad():
            return compiled(*inputs)

    return call


def _layer(width: int) -> nn.Module:
    torch.manual_seed(SEED)
    module: nn.Module = nn.Linear(width, width).eval()
    return module.requires_grad_(False)


def _row(width: int) -> Inputs:
    return (torch.randn(1, width, generator=torch.Generator().manual_seed(SEED)),)


def _job(name: str, tolerance: float, module: Callable[[], nn.Module], inputs: Callable[[], Inputs]) -> Job:
    return Job(name, GOALS, inputs, module, through_tessera, tolerance)


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    words: dict[str, Any] = {"width": 32, "heads": 2, "blocks": 2, "vocabulary": 300} if quick else {"blocks": 4}
    vocabulary = words.get("vocabulary", gpt2.VOCABULARY)
    images = {"width": 8, "depths": (1, 2), "classes": 10} if quick else {}
    return [
        _job("one layer of 16", 1e-5, partial(_layer, 16), partial(_row, 16)),
        _job(
            f"GPT-2 of {words['blocks']} blocks, 128 tokens",
            5e-5,
            partial(gpt2.random_model, seed=SEED, **words),
            lambda: (gpt2.random_tokens(128, vocabulary=vocabulary, seed=SEED),),
        ),
        _job(
            "ResNet-50, batch 1",
            5e-5,
            partial(resnet50.random_network, seed=SEED, **images),  # type: ignore[arg-type]
            lambda: (resnet50.random_images(1, 32 if quick else 224, seed=SEED),),
        ),
    ]
