"""Attention forward as torch's users call it: all lengths of GPT-2's and Llama's heads, causal, grouped, and decoding.

Inputs lie as a model's projections leave them, [batch, length, heads, size] with heads and lengths exchanged; a cache
as caches do, [batch, heads, length, size].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bench.jobs.job import Call, Inputs, Job, Peer
from tessera import op

SEED = 31
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3}
"""Of the largest value of the result, which is a mean: weights of bf16 are rounded by 2^-9 each."""
FULL, CAUSAL, NARROW, DECODE = 1.15, 1.3, 1.1, 1.2
"""The goals: the best peer's time / ours, of fp32 in full and causal, of bf16, and of one query against a cache."""


@dataclass(frozen=True)
class Case:
    """One attention: `heads` of `size`, `shared` of them in K and V, `queries` against `keys`."""

    heads: int
    size: int
    queries: int
    keys: int
    batch: int = 1
    shared: int = 0
    causal: bool = False
    dtype: str = "fp32"

    @property
    def shared_heads(self) -> int:
        """Heads of K and V."""
        return self.shared or self.heads

    @property
    def name(self) -> str:
        """What the tables show."""
        groups = f"/{self.shared}" if self.shared else ""
        lengths = f"{self.queries}" if self.queries == self.keys else f"{self.queries} x {self.keys}"
        kind = " causal" if self.causal else ""
        return f"{self.dtype} {self.batch} x {self.heads}{groups} heads of {self.size}, {lengths}{kind}"

    @property
    def goal(self) -> float:
        """What the issue asks of it."""
        if self.queries == 1:
            return DECODE
        if self.dtype != "fp32":
            return NARROW
        return CAUSAL if self.causal else FULL

    def inputs(self) -> Inputs:
        """Q, K and V of standard-normal values."""
        generator = torch.Generator().manual_seed(SEED)
        shapes = [(self.queries, self.heads), *[(self.keys, self.shared_heads)] * 2]
        drawn = [torch.randn(self.batch, *shape, self.size, generator=generator) for shape in shapes]
        q, k, v = (x.to(DTYPES[self.dtype]).transpose(1, 2) for x in drawn)
        return (q, k.contiguous(), v.contiguous()) if self.queries == 1 else (q, k, v)

    def module(self) -> nn.Module:
        """Torch's attention."""
        return Attention(self.causal and self.queries > 1, bool(self.shared))

    def ours(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's."""
        q, k, v = inputs
        return lambda: op.flash_attention(q, k, v, causal=self.causal).eval()

    def job(self) -> Job:
        """The case as the bench runs it."""
        itemsize = DTYPES[self.dtype].itemsize
        pairs = self.batch * self.heads * self.queries * self.keys
        seen = pairs * (self.queries + 1) // (2 * self.queries) if self.causal and self.queries > 1 else pairs
        held = self.batch * self.size * (2 * self.queries * self.heads + 2 * self.keys * self.shared_heads)
        return Job(
            name=self.name,
            goal=self.goal,
            inputs=self.inputs,
            module=self.module,
            ours=self.ours,
            tolerance=TOLERANCE[self.dtype],
            peers={"heads as queries": Peer(_grouped)} if self.shared and self.queries == 1 else {},
            flops=4 * seen * self.size,
            bytes=held * itemsize,
            dtype=self.dtype,
            compiles=False,  # Inductor calls the same function
        )


class Attention(nn.Module):
    """`scaled_dot_product_attention`; heads that share keys and values as torch has them."""

    def __init__(self, causal: bool, grouped: bool) -> None:
        super().__init__()
        self.causal, self.grouped = causal, grouped
        self.eval()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The weighted means of V."""
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=self.causal, enable_gqa=self.grouped)


def _grouped(module: nn.Module, inputs: Inputs) -> Call:
    """What a user who knows torch's kernels writes for one query: heads that share keys as queries of one head."""
    q, k, v = inputs
    batch, heads, _, size = q.shape

    def call() -> torch.Tensor:
        queries = q.reshape(batch, k.shape[1], heads // k.shape[1], size)
        return nn.functional.scaled_dot_product_attention(queries, k, v).reshape(q.shape)

    return call


def _cases(quick: bool) -> Iterator[Case]:
    if quick:
        yield Case(2, 16, 40, 40)
        yield Case(2, 16, 40, 40, causal=True, dtype="bf16")
        yield Case(4, 16, 1, 70, shared=2)
        return
    for dtype in ("fp32", "bf16"):
        for causal in (False, True):
            for length in (128, 512, 1024, 2048, 4096):
                yield Case(12, 64, length, length, causal=causal, dtype=dtype)
            for length in (512, 2048):
                yield Case(32, 128, length, length, shared=8, causal=causal, dtype=dtype)
            yield Case(12, 64, 512, 512, batch=8, causal=causal, dtype=dtype)
        yield Case(12, 64, 1, 1024, batch=8, dtype=dtype)
        for batch in (1, 8):
            yield Case(32, 128, 1, 4096, batch=batch, shared=8, dtype=dtype)
        yield Case(32, 128, 1, 4096, dtype=dtype)
    yield Case(12, 64, 512, 512, dtype="fp16")


def jobs(quick: bool) -> list[Job]:
    """The suite `attention`."""
    return [case.job() for case in _cases(quick)]
