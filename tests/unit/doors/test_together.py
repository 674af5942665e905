"""These operators inside traced functions, under every policy, and as operands of the other kernel families."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera import numerics, op

functional = torch.nn.functional


@op.kernel
def projected(x: Any, weight: Any, seed: Any) -> Any:
    return op.dropout(op.gelu(op.einsum("bsd,de->bse", x, weight)), 0.25, seed)


@op.kernel
def encoded(x: Any) -> Any:
    return op.flip(op.pad(op.rope(op.exp(x)), (1, 2), "reflect"), 1)


@op.kernel
def loss(logits: Any, targets: Any) -> Any:
    return op.cross_entropy(logits, targets)


def test_traced_functions_follow_shapes_and_seeds() -> None:
    for shape in ((2, 5, 8), (3, 7, 16), (2, 5, 8)):
        x, weight = torch.randn(shape), torch.randn(shape[-1], 12)
        plain = functional.gelu(torch.einsum("bsd,de->bse", x, weight))
        for seed in (1, 2):
            kept = op.dropout(torch.ones_like(plain), 0.25, seed).torch()
            torch.testing.assert_close(projected(x, weight, seed).torch(), plain * kept, rtol=1e-5, atol=1e-5)
        turned = op.rope(x.exp()).torch()
        torch.testing.assert_close(encoded(x).torch(), functional.pad(turned, (1, 2), "reflect").flip(1))
        targets = torch.randint(0, shape[1], (shape[0], shape[2]))
        torch.testing.assert_close(loss(x, targets).torch(), functional.cross_entropy(x, targets))


@pytest.mark.parametrize("policy", ["deterministic", "strict"])
def test_policies_change_no_choice(policy: Any) -> None:
    x, weight, targets = torch.randn(2, 5, 8), torch.randn(8, 12), torch.randint(0, 5, (2, 8))
    expected = projected(x, weight, 7).torch()
    with numerics.policy(policy):
        torch.testing.assert_close(projected(x, weight, 7).torch(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loss(x, targets).torch(), functional.cross_entropy(x, targets))


def test_what_is_walked_backwards_is_an_operand_of_every_family() -> None:
    x, q, image, weight = torch.randn(3, 4), torch.randn(1, 2, 8, 16), torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    attended = functional.scaled_dot_product_attention(q.flip(2), q, q)
    torch.testing.assert_close(op.flash_attention(op.flip(q, 2), q, q).torch(), attended)
    convolved = functional.conv2d(image.flip(3), weight)
    torch.testing.assert_close(op.conv2d(op.flip(image, 3), weight).torch(), convolved, rtol=1e-4, atol=1e-4)
    pooled = functional.max_pool2d(image.flip(2), 2)
    assert torch.equal(op.max_pool2d(op.flip(image, 2), 2).torch(), pooled)
    torch.testing.assert_close(op.fft(op.flip(x, 1)).torch(), torch.fft.fft(x.flip(1)))
    assert torch.equal(op.argmax(op.flip(x, 0), 1).torch(), x.flip(0).argmax(1))
    out = torch.empty(3, 4)
    op.flip(x, 0).eval(out)
    assert torch.equal(out, x.flip(0))


def test_numbers_and_padding_beside_products_and_convolutions() -> None:
    q, image, weight = torch.randn(1, 2, 8, 16), torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    causal = op.arange(8) <= op.arange(8).reshape(8, 1)
    attended = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(op.flash_attention(q, q, q, mask=causal).torch(), attended)
    shifted = functional.conv2d(image, weight) + torch.arange(4).reshape(4, 1, 1)
    added = op.conv2d(image, weight) + op.arange(4).reshape(4, 1, 1)
    torch.testing.assert_close(added.torch(), shifted, rtol=1e-4, atol=1e-4)
    mirrored = functional.conv2d(functional.pad(image, (1, 1, 1, 1), "reflect"), weight)
    ours = op.conv2d(op.pad(image, (1, 1, 1, 1), "reflect"), weight)
    torch.testing.assert_close(ours.torch(), mirrored, rtol=1e-4, atol=1e-4)


def test_complex_numbers_move_too() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    assert torch.equal(op.flip(x, 1).torch(), x.flip(1))
    assert torch.equal(op.stack([x, x], 0).torch(), torch.stack([x, x]))
    assert torch.equal(op.pad(x, (1, 1)).torch(), functional.pad(x, (1, 1)))
