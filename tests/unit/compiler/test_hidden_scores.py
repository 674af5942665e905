"""What functions of scores hold at positions of hidden keys has no part in a gradient, be it NaN or infinity."""

from __future__ import annotations

import math
from typing import Any

import torch

from tessera import grad, op

QUERIES, KEYS = 37, 70


def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Every seventh key nobody sees, the last ones neither; some blocks have both."""
    return (j % 7 != 3) & (j <= i + 5)


def expected(leaves: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
    """The gradients in float64, of a held tensor that is finite everywhere."""
    q, k, v, held = leaves = [x.double().nan_to_num(0, 0, 0).requires_grad_() for x in leaves]
    k, v = (x.repeat_interleave(3, 1) for x in (k, v))
    i, j = torch.arange(QUERIES).view(-1, 1), torch.arange(KEYS)
    scores = torch.tanh(q @ k.mT * 0.25 * held)
    weights = torch.softmax(torch.where(seen(0, 0, i, j), scores, -math.inf), -1)
    return list(torch.autograd.grad(weights @ v, leaves, g.double()))


def test_what_is_held_for_hidden_keys_reaches_no_cotangent() -> None:
    generator = torch.Generator().manual_seed(1044)
    shapes = (1, 6, QUERIES, 16), (1, 2, KEYS, 16), (1, 2, KEYS, 5), (KEYS,)
    q, k, v, held = (torch.randn(shape, generator=generator) for shape in shapes)
    g = torch.randn(1, 6, QUERIES, 5, generator=generator)

    def ours(q: Any, k: Any, v: Any, held: Any) -> Any:
        def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return op.tanh(s * held[j])

        return op.sum(op.flash_attention(q, k, v, score_mod=changed, mask_mod=seen) * g)

    hidden = torch.arange(KEYS) % 7 == 3
    hidden[QUERIES + 5 :] = True
    for value in (math.nan, math.inf):
        leaves = [q, k, v, torch.where(hidden, value, held)]
        found = [each.torch() for each in grad.grad(ours, (0, 1, 2, 3))(*leaves)]
        for one, wanted in zip(found, expected(leaves, g), strict=True):
            torch.testing.assert_close(one.double(), wanted, atol=1e-5, rtol=1e-5)
        assert (found[1][:, :, hidden] == 0).all()
