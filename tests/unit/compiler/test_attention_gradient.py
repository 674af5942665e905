"""Gradients of attention on CPUs: formed block by block, in two kernels, by what the forward kernel saved."""

from __future__ import annotations

import pytest
import torch

import tessera
from tessera import memory_stats, op, settings
from tessera.errors import MemoryLimitError
from tessera.grad import value_and_grad, vjp
from tessera.lazy.evaluation import evaluate
from tessera.ops import OPERATORS

CHANCE = torch.Generator().manual_seed(7)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    CHANCE.manual_seed(7)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=CHANCE).to(dtype)


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> list[tessera.Tensor]:
    """Evaluated together with the result, as in training."""
    operands = [op.tensor(x) for x in (q, k, v)]
    result = op.flash_attention(*operands, mask=mask, causal=causal)
    found = vjp(result, operands, op.tensor(g))
    evaluate([result, *found])
    return found


def expected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> tuple[torch.Tensor, ...]:
    """By torch, out of the reference, in float64."""
    operands = [x.double().requires_grad_() for x in (q, k, v)]
    masks = [] if mask is None else [mask if mask.dtype == torch.bool else mask.double()]
    scale = torch.tensor(q.shape[-1] ** -0.5, dtype=torch.float64)
    reference = OPERATORS["flash_attention"].reference
    result = reference(*operands, scale, *masks, causal=causal)
    return torch.autograd.grad(result, operands, g.double())


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    tolerance: float = 1e-5,
    causal: bool = False,
) -> None:
    """The gradients, which are what torch finds in float64."""
    g = normal(*op.flash_attention(q, k, v).shape, dtype=q.dtype)
    for found, wanted in zip(gradients(q, k, v, g, mask, causal), expected(q, k, v, g, mask, causal), strict=True):
        torch.testing.assert_close(found.torch().double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_the_reference(causal: bool) -> None:
    for queries, keys in ((65, 65), (3, 150), (127, 1), (0, 5), (5, 0)):
        check(normal(2, 4, queries, 24), normal(2, 4, keys, 24), normal(2, 4, keys, 24), causal=causal)


def test_heads_share_keys_of_any_size_and_layout() -> None:
    q, k, v = normal(2, 33, 6, 17).transpose(1, 2), normal(2, 2, 19, 70).mT[..., :17].contiguous(), normal(2, 2, 70, 5)
    check(q, k, v, causal=True)
    check(normal(9, 7), normal(12, 7), normal(12, 3))
    check(normal(3, 1, 2, 9, 7), normal(2, 2, 12, 7), normal(2, 12, 3))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 4e-3), (torch.float64, 1e-12)]
)
def test_sums_are_wide(dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (normal(1, 2, 70, 16, dtype=dtype) for _ in range(3))
    check(q, k, v, causal=True, tolerance=tolerance)


def test_a_query_without_any_key_has_no_gradient() -> None:
    seen = torch.rand(1, 2, 40, 50, generator=torch.Generator().manual_seed(3)) > 0.5
    seen[:, :, [0, 17, 39]] = False
    q, k, v, g = normal(1, 2, 40, 8), normal(1, 2, 50, 8), normal(1, 2, 50, 8), normal(1, 2, 40, 8)
    lowest = torch.zeros(1, 2, 40, 50).masked_fill(~seen, -torch.inf)
    for mask in (seen, lowest):
        check(q, k, v, mask)
        found = gradients(q, k, v, g, mask)
        assert (found[0].torch()[:, :, [0, 17, 39]] == 0).all()
    (first,) = {bool((x.torch() == 0).all()) for x in gradients(q, k, v, g, torch.zeros_like(seen))}
    assert first


def test_masks_and_scales_have_gradients() -> None:
    q, k, v, mask = normal(2, 3, 9, 8), normal(2, 3, 12, 8), normal(2, 3, 12, 8), normal(3, 1, 12)
    operands = [x.double().requires_grad_() for x in (q, k, v, mask)]
    scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    reference = OPERATORS["flash_attention"].reference(*operands[:3], scale, operands[3], causal=False)
    wanted = torch.autograd.grad(reference.square().sum(), [scale, operands[3]])
    _, found = value_and_grad(
        lambda scale, mask: op.sum(op.flash_attention(q, k, v, scale=scale, mask=mask) ** 2), (0, 1)
    )(op.tensor(torch.tensor(0.3)), op.tensor(mask))
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.torch().double(), other, atol=3e-5, rtol=3e-5)


def test_the_forward_kernel_gives_logarithms_and_one_kernel_all_cotangents() -> None:
    operands = [op.tensor(normal(1, 2, 64, 16)) for _ in range(3)]
    result = op.flash_attention(*operands, causal=True)
    found = vjp(result, operands, op.tensor(normal(1, 2, 64, 16)))
    report = op.concat([result, *found], axis=0).inspect("fusion")
    assert "flash_attention . attention_logarithms" in report or "attention_logarithms . flash_attention" in report
    assert sum("attention_d" in line and "through" not in line for line in report.splitlines()) == 1


def test_no_matrix_of_scores_is_in_memory() -> None:
    length = 1024
    q, k, v, g = (normal(1, 1, length, 8) for _ in range(4))
    gradients(q, k, v, g, causal=True)
    with settings.override(memory_limit_bytes=memory_stats()["reserved_bytes"] + length * length):
        gradients(q + 1, k, v, g, causal=True)
        with pytest.raises(MemoryLimitError):
            op.softmax(op.matmul(op.tensor(q), op.tensor(k).mT)).eval()
