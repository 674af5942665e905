"""Whole models with random weights, inference: GPT-2 small of 12 blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from bench.jobs.blocks import DTYPES, GOALS, SEED, TOKENS
from bench.jobs.job import Call, Inputs, Job
from examples import gpt2

TOLERANCE = {"fp32": 5e-5, "bf16": 5e-2}
"""Of the largest logit; what 12 blocks round adds up."""


def _gpt2(module: nn.Module, inputs: Inputs) -> Call:
    assert isinstance(module, gpt2.Model)
    outer, blocks = gpt2.constants_of(module)
    return lambda: gpt2.logits(inputs[0], outer, blocks, module.heads).eval()


def _gpt2_jobs(quick: bool) -> Iterator[Job]:
    small = {"width": 32, "heads": 2, "blocks": 2, "vocabulary": 300} if quick else {}
    vocabulary = small.get("vocabulary", gpt2.VOCABULARY)
    for tokens in TOKENS[:1] if quick else TOKENS:
        for name, dtype in DTYPES.items():
            yield Job(
                name=f"GPT-2 of 12 blocks {name}, {tokens} tokens",
                goal=GOALS,
                inputs=lambda tokens=tokens: (  # type: ignore[misc]
                    gpt2.random_tokens(tokens, vocabulary=vocabulary, seed=SEED),
                ),
                module=partial(gpt2.random_model, dtype=dtype, seed=SEED, **small),
                ours=_gpt2,
                tolerance=TOLERANCE[name],
                dtype=name,
                memory=True,
            )


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    return [*_gpt2_jobs(quick)]
