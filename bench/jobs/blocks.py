"""Whole blocks and models with random weights: a block of GPT-2 small, a block of a Llama-type model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.jobs.job import Builder, Call, Inputs, Job
from bench.results import Goal
from examples import gpt2_block, llama_block

SEED = 20
GOALS = (
    Goal("torch.compile as installed", ("compiled",), 1.3),
    Goal("torch.compile, MKL unlocked", ("compiled_unlocked",), 1.1),
)
TOLERANCE = {"fp32": 2e-5, "bf16": 3e-2}
"""Of the largest value of the result: a bf16 block rounds a dozen intermediate results by 2^-9 each."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOKENS = (128, 1024)


def normal(*shape: int, dtype: str = "fp32") -> Inputs:
    """One input of standard-normal values."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(SEED)).to(DTYPES[dtype]),)


def _gpt2(attention: gpt2_block.Attention) -> Builder:
    def build(module: torch.nn.Module, inputs: Inputs) -> Call:
        weights = gpt2_block.constants(module)
        heads = int(module.heads)  # type: ignore[arg-type]
        return lambda: gpt2_block.block(inputs[0], weights, heads, attention).eval()

    return build


def _gpt2_jobs(quick: bool) -> Iterator[Job]:
    width, heads = (64, 4) if quick else (768, 12)
    for tokens in TOKENS[:1] if quick else TOKENS:
        for dtype, kind in DTYPES.items():
            yield Job(
                name=f"GPT-2 block {dtype}, {tokens} tokens",
                goal=GOALS,
                inputs=partial(normal, tokens, width, dtype=dtype),
                module=partial(gpt2_block.random_block, width, heads, kind, SEED),
                ours=_gpt2(gpt2_block.flash),
                variants={"tessera, attention as algebra": _gpt2(gpt2_block.algebra)},
                tolerance=TOLERANCE[dtype],
                dtype=dtype,
                memory=True,
            )


def _llama(attention: llama_block.Attention) -> Builder:
    def build(module: torch.nn.Module, inputs: Inputs) -> Call:
        weights = llama_block.constants(module)
        size = int(module.size)  # type: ignore[arg-type]
        return lambda: llama_block.block(inputs[0], weights, size, attention).eval()

    return build


def _llama_jobs(quick: bool) -> Iterator[Job]:
    width, heads, kv_heads, hidden = (64, 4, 2, 176) if quick else (2048, 32, 8, 5632)
    for tokens in TOKENS[:1] if quick else TOKENS:
        for dtype, kind in DTYPES.items():
            yield Job(
                name=f"Llama block {dtype}, {tokens} tokens",
                goal=GOALS,
                inputs=partial(normal, tokens, width, dtype=dtype),
                module=partial(llama_block.random_block, width, heads, kv_heads, hidden, tokens, kind, SEED),
                ours=_llama(llama_block.flash),
                variants={"tessera, attention as algebra": _llama(llama_block.algebra)},
                tolerance=TOLERANCE[dtype],
                dtype=dtype,
                memory=True,
            )


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    return [*_gpt2_jobs(quick), *_llama_jobs(quick)]
