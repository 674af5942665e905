"""The dtype of sums, and the math mode, of compiled matrix products."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.compiler.explain.inspection import choices_of
from tessera.compiler.tune.identities import identify
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError
from tessera.scheduling.lowering.spec import ContractionSpec


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_accum_dtype_is_the_dtype_of_the_sums(dtype: torch.dtype) -> None:
    # In fp32 the ones between 2 ** 30 and -2 ** 30 vanish.
    a, b = torch.ones(16, 64, dtype=dtype), torch.ones(64, 16, dtype=dtype)
    a[:, 0], a[:, -1], b[0], b[-1] = 2.0**15, -(2.0**15), 2.0**15, 2.0**15
    for wide in (
        op.matmul(a, b, accum_dtype="fp64"),
        op.gemm(a, b, torch.zeros(16, dtype=dtype), accum_dtype="fp64"),
    ):
        assert torch.equal(wide.torch(), torch.full((16, 16), 62, dtype=dtype))
    assert op.matmul(a, b, accum_dtype="fp32").torch().max() < 62
    widened = op.matmul(a, b, accum_dtype="fp64").inspect("schedule")
    assert widened.count('"tessera.schedule.kernel"') == 1  # which casts as it reads and writes


def test_the_math_mode_reaches_the_lowerings() -> None:
    a = torch.randn(8, 8)
    for math in ("tf32", None):
        (kernel,) = choices_of(op.gelu(op.matmul(a, a, math=math)).structure)
        assert isinstance(kernel.subject.spec, ContractionSpec)
        assert kernel.subject.spec.math == math
        found = identify(kernel.subject, (8, 8, 8), "fp32", "sm_90 H100-SXM5-80GB", threads=1)
        assert found.math == (math or "ieee")


def test_the_math_mode_is_no_dtype_of_operands() -> None:
    with pytest.raises(ArgumentError, match="tf32") as refused:
        launches_of_operator(op.matmul, (8, 8, 8), "tf32")
    assert "math mode" in refused.value.hints[0]
