"""What became of an expression is told after its evaluation, too."""

from __future__ import annotations

import pytest
import torch

import tessera
from tessera import op

LEVELS = ("graph", "rewrites", "fusion", "schedule", "tile")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("times", [1, 2])
def test_levels_are_the_same_before_and_after(level: str, times: int) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    for _ in range(times):  # at first as it is planned, then by the plan
        y = op.gelu(op.matmul(x, w) * 1.0 + 0.0)
        before = y.inspect(level)
        y.eval()
        assert y.inspect(level) == before
    assert "matmul" in before or level == "tile"


def test_results_that_are_evaluated_together_keep_theirs() -> None:
    x = torch.randn(8, 16)
    y, z = op.tanh(x), op.sum(x * x)
    wanted = y.inspect("graph"), z.inspect("graph")
    tessera.eval(y, z)
    assert (y.inspect("graph"), z.inspect("graph")) == wanted
