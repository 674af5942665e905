"""Attention with windows and functions of scores on a real GPU, forward and backward, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op
from tessera.grad import vjp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

LENGTH, HIDDEN = 1500, 600
CASES: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {
    "window": (None, lambda b, h, i, j: (j <= i) & (i - j < 200)),
    "around": (None, lambda b, h, i, j: (i - j < 100) & (j - i < 50)),
    "late keys": (lambda s, b, h, i, j: s * 0.5 + (j - i) * 0.001, lambda b, h, i, j: (j <= i) & (j >= 900)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head", [64, 128])
def test_windows_and_their_gradients(name: str, head: int) -> None:
    score, seen = CASES[name]
    chance = torch.Generator("cuda").manual_seed(3)
    shapes = ((2, 8, LENGTH, head), (2, 2, LENGTH, head), (2, 2, LENGTH, head), (2, 8, LENGTH, head))
    q, k, v, g = (torch.randn(shape, generator=chance, device="cuda").bfloat16() for shape in shapes)
    operands = [op.tensor(x) for x in (q, k, v)]
    result = op.flash_attention(*operands, score_mod=score, mask_mod=seen)
    found = [result, *vjp(result, operands, op.tensor(g))]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(4, 1) for x in wide[1:])
    i, j = torch.arange(LENGTH, device="cuda").view(-1, 1), torch.arange(LENGTH, device="cuda")
    scores = wide[0] @ keys.mT / head**0.5
    scores = scores if score is None else score(scores, 0, 0, i, j)
    shown = seen(0, 0, i, j)
    blind = ~shown.any(-1, keepdim=True)
    weights = torch.softmax(torch.where(shown | blind, scores, -torch.inf), -1)
    exact = torch.where(blind, 0.0, weights) @ values
    for each, wanted in zip(found, (exact, *torch.autograd.grad(exact, wide, g.double())), strict=True):
        error = (each.torch().double() - wanted).abs().max() / wanted.abs().max()
        assert error < 2**-5, (name, head, float(error))


def test_keys_that_a_window_hides_are_not_read() -> None:
    """Values of hidden keys that are not finite would show: 0 times NaN is NaN."""
    q, k, v = (torch.randn(1, 4, LENGTH, 64, device="cuda").bfloat16() for _ in range(3))
    v[:, :, :HIDDEN] = torch.nan
    result = op.flash_attention(*(op.tensor(x) for x in (q, k, v)), mask_mod=CASES["window"][1]).torch()
    assert result[:, :, HIDDEN + 200 + 256 :].isfinite().all()
