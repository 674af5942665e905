"""Attention's kernels on every CPU whose code runs here: what the interpreter says, and nothing beyond the buffers."""

from __future__ import annotations

import pytest
import torch

from tessera.dtypes import DType, bf16, bool_, fp16, fp32
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.scheduling.families.attention.lowering import lower_attention
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tests.unit.backend.llvm.harness import Guarded, compile_module, run
from tests.unit.backend.llvm.test_tile_operations import TARGETS
from tests.unit.scheduling import specs

LANES = {"queries": (4, 16), "head": (2, 2)}


@TARGETS
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [fp32, bf16, fp16], ids=str)
def test_kernels_write_what_the_interpreter_writes(lanes: str, dtype: DType, target: Target) -> None:
    queries, keys, head, value_head = 37, 45, 19, 21
    schedule = Schedule(tile=(32, 16), micro=LANES[lanes], lanes=lanes, head=(32, 32), parallel="queries", fusion=True)
    spec = specs.attention(dtype, causal=True, mask=bool_)
    module = lower_attention(spec, schedule, target.vector_bits // 8, target.has_avx512bf16)
    q = Guarded(torch.randn(2, queries, head).to(dtype.torch))
    k, v = (Guarded(torch.randn(2, keys, size).to(dtype.torch)) for size in (head, value_head))
    mask = Guarded(torch.rand(queries, keys) > 0.2)
    out = Guarded(torch.full((2, queries, value_head), float("nan"), dtype=dtype.torch))
    run(compile_module(module, target), [q.tensor, k.tensor, v.tensor, 0.3, mask.tensor, out.tensor], workers=3)
    for operand in (q, k, v, mask):
        operand.check(output=False)
    out.check(output=True)
    expected = torch.full_like(out.tensor, float("nan"))
    run_kernel(module, [q.tensor, k.tensor, v.tensor, 0.3, mask.tensor, expected])
    # Weights and results of 16 bits may be rounded the other way: one unit of a result of up to two.
    tolerance = 1e-5 if dtype is fp32 else 4 * torch.finfo(dtype.torch).eps
    torch.testing.assert_close(out.tensor, expected, atol=tolerance, rtol=tolerance)
