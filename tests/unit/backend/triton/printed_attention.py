"""Runs printed attention kernels, as `printed.py` does: on the CPU, for which TRITON_INTERPRET=1 must be set;
`python printed_attention.py cuda` on a GPU, where 16-bit operands and larger shapes follow.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch

from tessera import target
from tessera.dtypes import DType, bf16, bool_, fp16, fp32
from tessera.ops import OPERATORS
from tessera.scheduling.families.attention.gpu import space as gpu_attention_space
from tessera.scheduling.families.attention.gpu.lowering import lower_attention_gpu
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.language.schedule import Schedule
from tests.unit.backend.triton.printed import DEVICE, ERRORS, check, this_gpu
from tests.unit.scheduling import specs

GPU = target.gpu("sm90")
"""What kernels are written for that take fp32, of any GPU alike."""
SMALL = Schedule(tile=(16, 32), head=(16, 16), exact=False, warps=1, pipeline_depth=2)


def reference(operands: list[Any], causal: bool) -> torch.Tensor:
    """What the record says, in float64: of Q, K, V, the scale, and maybe a mask."""
    wide = [
        x if isinstance(x, torch.Tensor) and x.dtype == torch.bool else torch.as_tensor(x).double() for x in operands
    ]
    result: torch.Tensor = OPERATORS["flash_attention"].reference(*wide, causal=causal)
    return result


def operands(queries: int, keys: int, heads: tuple[int, int], dtype: DType, batch: int = 2) -> list[Any]:
    """Q, K, V and the usual scale."""
    head, value_head = heads
    shapes = ((batch, queries, head), (batch, keys, head), (batch, keys, value_head))
    return [*(torch.randn(shape).to(dtype.torch) for shape in shapes), 1 / math.sqrt(head)]


def small() -> None:
    """Blocks that lengths and heads do not fill, masks, queries without keys, heads that share keys."""
    for queries, keys in ((37, 71), (5, 33), (33, 5), (1, 40), (64, 64)):
        for causal in (False, True):
            given = operands(queries, keys, (13, 9), fp32)
            module = lower_attention_gpu(specs.attention(fp32, causal=causal), SMALL, GPU)
            name = f"{queries} of {keys}{' causal' if causal else ''}"
            check(name, module, given, reference(given, causal), torch.float32)
    for dtype in (bool_, fp32):
        drawn = torch.randn(37, 71)
        drawn[5] = -math.inf if dtype is fp32 else -1.0  # a query that sees no key
        given = [*operands(37, 71, (13, 9), fp32), drawn > 0 if dtype is bool_ else drawn]
        module = lower_attention_gpu(specs.attention(fp32, causal=True, mask=dtype), SMALL, GPU)
        check(f"mask of {dtype}", module, given, reference(given, True), torch.float32)
    whole = SMALL.replace(head=(16, 32), exact=True, tile=(16, 16))
    given = operands(48, 50, (16, 32), fp32)
    check(
        "whole heads",
        lower_attention_gpu(specs.attention(fp32), whole, GPU),
        given,
        reference(given, False),
        torch.float32,
    )
    q, k, v, _ = operands(20, 30, (16, 16), fp32)
    grouped = torch.stack([q, -q, 2 * q], 1)
    module = lower_attention_gpu(specs.attention(fp32, causal=True, batch=("b0", "b1"), shared=True), SMALL, GPU)
    expected = reference([grouped, k[:, None], v[:, None], 0.25], True)
    check("shared keys", module, [grouped, k, v, 0.25], expected, torch.float32)


def default_schedules() -> None:
    """16-bit operands under the schedules that this GPU gets, whole blocks and others."""
    for dtype in (bf16, fp16):
        for head in (32, 64, 80, 128, 256):
            for queries, keys, causal in ((1024, 1024, True), (1000, 1000, False), (3, 700, True), (300, 5, True)):
                given = operands(queries, keys, (head, head), dtype, batch=8)
                problem = AttentionProblem((8,), queries, keys, head, head, causal, dtype, fp32, this_gpu(), 1)
                schedule = gpu_attention_space.default_schedule(problem)
                module = lower_attention_gpu(specs.attention(dtype, causal=causal), schedule, problem.target)
                name = f"{dtype} {queries} of {keys}, heads of {head}{' causal' if causal else ''}"
                check(name, module, given, reference(given, causal), dtype.torch)


if __name__ == "__main__":
    torch.manual_seed(0)
    small()
    if DEVICE != "cpu":  # bf16 products are wrong in the interpreter of Triton 3.6
        default_schedules()
    json.dump(ERRORS, sys.stdout)
