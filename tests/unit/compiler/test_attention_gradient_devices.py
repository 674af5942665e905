"""Gradients of attention on the device that interprets a GPU's kernels: two walks, without a matrix of scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch

from tessera import op
from tessera.grad import grad, vjp
from tessera.handle import Tensor
from tessera.lazy.evaluation import evaluate
from tessera.ops import OPERATORS

pytest.importorskip("triton", reason="the extra `triton` is not installed")
pytestmark = pytest.mark.skipif(
    tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4), reason="Triton 3.6's interpreter needs numpy < 2.4"
)


def check(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    value_head: int | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
    turned: bool = False,
) -> list[Tensor]:
    """The gradients, evaluated with the result as in training, are what torch finds in float64."""
    chance = torch.Generator().manual_seed(11)
    v_shape = (*k_shape[:-1], value_head or k_shape[-1])
    q, k, v, g = (
        torch.randn(shape, generator=chance).to(dtype)
        for shape in (q_shape, k_shape, v_shape, (*q_shape[:-1], v_shape[-1]))
    )
    if turned:
        q, k, v, g = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, g))
    operands = [op.tensor(x, device="interpreter") for x in (q, k, v)]
    seen = None if mask is None else op.tensor(mask, device="interpreter")
    result = op.flash_attention(*operands, mask=seen, causal=causal)
    found = vjp(result, operands, op.tensor(g, device="interpreter"))
    evaluate([result, *found])
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    masks = [] if mask is None else [mask if mask.dtype == torch.bool else mask.double()]
    scale = torch.tensor(q.shape[-1] ** -0.5, dtype=torch.float64)
    reference = OPERATORS["flash_attention"].reference(*wide, scale, *masks, causal=causal)
    tolerance = 8 * torch.finfo(dtype).eps
    for each, wanted in zip(found, torch.autograd.grad(reference, wide, g.double()), strict=True):
        torch.testing.assert_close(
            each.torch().double(), wanted, atol=tolerance * max(wanted.abs().max().item(), 1), rtol=tolerance
        )
    return found


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_lengths_do_not_fill(causal: bool) -> None:
    for queries, keys in ((65, 65), (3, 70), (70, 3), (1, 1)):
        check((1, 2, queries, 24), (1, 2, keys, 24), 13, causal=causal)


def test_heads_that_share_keys_lie_anyhow() -> None:
    check((2, 4, 37, 16), (2, 2, 50, 16), 8, causal=True, turned=True)


def test_masks_and_queries_that_see_nothing() -> None:
    seen = torch.rand(40, 50, generator=torch.Generator().manual_seed(3)) > 0.5
    seen[[0, 17, 39]] = False
    for mask in (seen, torch.zeros(40, 50).masked_fill(~seen, -torch.inf)):
        found = check((1, 1, 40, 8), (1, 1, 50, 8), mask=mask)
        assert (found[0].torch()[:, :, [0, 17, 39]] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_of_16_bits(dtype: torch.dtype) -> None:
    check((1, 2, 70, 16), (1, 1, 70, 16), causal=True, dtype=dtype)


def test_two_kernels_and_no_matrix_of_scores() -> None:
    operands = [op.tensor(torch.ones(1, 2, 64, 16), device="interpreter") for _ in range(3)]
    result = op.flash_attention(*operands, causal=True)
    found = vjp(result, operands, op.tensor(torch.ones(1, 2, 64, 16), device="interpreter"))
    report = op.concat([result, *found], axis=0).inspect("fusion")
    assert "two-walks" in report
    assert "matmul" not in report
    (alone,) = vjp(op.flash_attention(*operands), operands[:1], operands[0])
    assert "two-walks" not in alone.inspect("fusion")


def test_functions_of_scores_and_what_stands_beside_them() -> None:
    """A bias of each pair, of each key, and of each head; a window that hides blocks."""
    chance = torch.Generator().manual_seed(2)
    q, k, v, g = (torch.randn(1, 2, 40, 8, generator=chance) for _ in range(4))
    beside = [torch.randn(shape, generator=chance) for shape in ((40, 40), (40,), (2,))]
    functions: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
        (lambda s, b, h, i, j, bias: s + bias[i, j], lambda b, h, i, j: j <= i + 3),
        (lambda s, b, h, i, j, bias: s * bias[j], lambda b, h, i, j: (j <= i) & (i - j < 12)),
        (lambda s, b, h, i, j, bias: s + bias[h] * (j - i), lambda b, h, i, j: j < 38),
    )
    for bias, (score, seen) in zip(beside, functions, strict=True):

        def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, score: Any = score, seen: Any = seen) -> Tensor:
            result = op.flash_attention(q, k, v, score_mod=partial(score, bias=bias), mask_mod=seen)
            return op.sum(result * op.tensor(g, device="interpreter"))

        found = grad(ours, (0, 1, 2, 3))(*(op.tensor(x, device="interpreter") for x in (q, k, v, bias)))
        evaluate(list(found))
        wide = [x.double().requires_grad_() for x in (q, k, v, bias)]
        at = [torch.arange(40).view(shape) for shape in ((-1, 1), (1, -1))]
        heads = torch.arange(2).view(-1, 1, 1)
        scores = score(wide[0] @ wide[1].mT / 8**0.5, 0, heads, *at, wide[3])
        scores = torch.where(seen(0, heads, *at), scores, -torch.inf)
        wanted = torch.autograd.grad((torch.softmax(scores, -1) @ wide[2] * g).sum(), wide)
        for each, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(each.torch().double(), exact, atol=1e-4, rtol=1e-5)
