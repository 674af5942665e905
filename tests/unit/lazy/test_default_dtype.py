"""Integers become floats of the default dtype that torch has now, not when the same algebra was first met."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import Tensor, op

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": op.exp,
    "quotient": lambda x: op.div(x, x + 1),
    "number": lambda x: op.div(x, 2),
}


@pytest.mark.parametrize("name", MADE)
def test_integers_follow_torchs_default_dtype(name: str) -> None:
    x = op.tensor(torch.arange(5))
    before = torch.get_default_dtype()
    found = []
    try:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            found.append(MADE[name](x).torch().dtype)
    finally:
        torch.set_default_dtype(before)
    assert found == [torch.float32, torch.float64] * 2
