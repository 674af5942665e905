"""`analyze.copy_bound`: a computation held against a copy of the bytes that it must move."""

from __future__ import annotations

import pytest
import torch

from tessera import analyze, op
from tessera.errors import ArgumentError


def test_it_counts_operands_and_results_and_what_is_done_with_them() -> None:
    x, weight = torch.randn(1, 8, 40, 40), torch.randn(8, 3, 3)
    found = analyze.copy_bound(lambda: op.depthwise_conv2d(x, weight, padding=1), repeats=3)
    assert found.bytes == 4 * (2 * x.numel() + weight.numel())
    assert found.flops == 2 * 9 * x.numel()
    assert found.repeats == 3
    assert found.seconds > 0
    assert found.pct == pytest.approx(100 * found.copy_seconds / found.seconds)
    assert "% of the copy bound" in str(found)


def test_what_runs_no_kernel_is_refused() -> None:
    x = op.tensor(torch.randn(4)).eval()
    with pytest.raises(ArgumentError, match="runs no kernel"):
        analyze.copy_bound(lambda: x)
    with pytest.raises(ArgumentError, match="repeats=0"):
        analyze.copy_bound(lambda: op.exp(x), repeats=0)
