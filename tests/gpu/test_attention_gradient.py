"""Gradients of attention on a real GPU, against float64."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.grad import vjp
from tessera.lazy.evaluation import evaluate
from tessera.ops import OPERATORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

HALVES = (torch.bfloat16, torch.float16)
ROUNDINGS = {torch.bfloat16: 4, torch.float16: 8, torch.float32: 32}
"""The largest error, relative to the largest element, in units of the dtype's eps."""
CASES = {
    "whole": ((2, 4, 512, 64), (2, 4, 512, 64), 64, False, None, HALVES),
    "causal": ((2, 4, 512, 64), (2, 4, 512, 64), 64, True, None, (*HALVES, torch.float32)),
    "heads of 128": ((1, 4, 640, 128), (1, 4, 640, 128), 128, True, None, (*HALVES, torch.float32)),
    "enough heads for wide tiles": ((4, 32, 1024, 128), (4, 32, 1024, 128), 128, True, None, (torch.bfloat16,)),
    "wide tiles of heads of 64": ((4, 32, 1024, 64), (4, 32, 1024, 64), 64, False, None, (torch.bfloat16,)),
    "heads of 256": ((1, 2, 200, 256), (1, 2, 200, 256), 256, True, None, (torch.bfloat16,)),
    "ragged": ((3, 2, 333, 80), (3, 2, 517, 80), 40, True, None, (*HALVES, torch.float32)),
    "more queries than keys": ((1, 2, 517, 64), (1, 2, 333, 64), 64, True, None, (torch.bfloat16,)),
    "shared keys": ((2, 8, 389, 64), (2, 2, 389, 64), 64, True, None, HALVES),
    "one query": ((2, 2, 1, 64), (2, 2, 700, 64), 64, True, None, (torch.bfloat16,)),
    "seen": ((2, 2, 300, 64), (2, 2, 400, 64), 64, False, torch.bool, (torch.bfloat16, torch.float32)),
    "added": ((2, 2, 300, 64), (2, 2, 400, 64), 64, True, torch.float32, (torch.bfloat16,)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_reference(name: str) -> None:
    q_shape, k_shape, value_head, causal, masked, dtypes = CASES[name]
    chance = torch.Generator("cuda").manual_seed(5)
    shapes = q_shape, k_shape, (*k_shape[:-1], value_head), (*q_shape[:-1], value_head)
    drawn = [torch.randn(shape, generator=chance, device="cuda") for shape in shapes]
    mask = torch.randn(q_shape[-2], k_shape[-2], generator=chance, device="cuda") if masked else None
    mask = mask > 0 if mask is not None and masked is torch.bool else mask
    for dtype in dtypes:
        q, k, v, g = (x.to(dtype) for x in drawn)
        operands = [op.tensor(x) for x in (q, k, v)]
        result = op.flash_attention(*operands, mask=None if mask is None else op.tensor(mask), causal=causal)
        found = vjp(result, operands, op.tensor(g))
        evaluate([result, *found])
        wide = [x.double().requires_grad_() for x in (q, k, v)]
        masks = [] if mask is None else [mask if masked is torch.bool else mask.double()]
        wanted = torch.autograd.grad(_reference(wide, masks, causal), wide, g.double())
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps
        for each, exact in zip(found, wanted, strict=True):
            error = (each.torch().double() - exact).abs().max() / exact.abs().max()
            assert error < tolerance, (name, dtype, float(error))


def _reference(operands: list[torch.Tensor], masks: list[torch.Tensor], causal: bool) -> torch.Tensor:
    q, k, v = operands
    if causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
        masks = [torch.where(seen, masks[0] if masks else 0.0, -torch.inf).double()]
    scale = torch.tensor(q.shape[-1] ** -0.5, dtype=torch.float64, device=q.device)
    result: torch.Tensor = OPERATORS["flash_attention"].reference(q, k, v, scale, *masks, causal=False)
    return result


def test_gradients_are_the_same_again() -> None:
    q, k, v, g = (torch.randn(2, 8, 777, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    first, second = (
        [each.torch().clone() for each in vjp(op.flash_attention(*operands, causal=True), operands, op.tensor(g))]
        for operands in ([op.tensor(x) for x in (q, k, v)] for _ in range(2))
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
