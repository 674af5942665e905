"""Operands that repeat themselves along a product's k, or along a part of what is reduced, and that kernels computed:
their strides along extents of 1 are those of a contiguous tensor, not 0 as a leaf's.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import Tensor, op
from tests.whole import examples

EXTENTS = st.sampled_from((1, 2, 5, 8, 17, 33))


def assert_close(made: Tensor, expected: torch.Tensor) -> None:
    """Equal to sums that were formed in fp64."""
    scale = max(expected.abs().max().item(), 1.0)
    torch.testing.assert_close(made.torch().double(), expected, rtol=1e-4, atol=1e-5 * scale)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


@settings(max_examples=examples(13, 25))
@given(EXTENTS, EXTENTS, EXTENTS)
def test_a_product_of_rows_that_are_scaled_by_a_computed_column(m: int, n: int, k: int) -> None:
    a, b, rows, columns = drawn(m, k), drawn(k, n), drawn(m, 3), drawn(3, n)
    x, w, v, u = (op.tensor(each.float()) for each in (a, b, rows, columns))
    scaled = x * op.max(v, axis=1, keepdims=True)
    assert_close(scaled @ w, (a * rows.amax(1, keepdim=True)) @ b)
    assert_close(x @ (w * op.max(u, axis=0, keepdims=True)), a @ (b * columns.amax(0)))


def test_a_product_of_images_after_batch_norm() -> None:
    x, mean, weight = drawn(3, 4, 5, 8), drawn(4), drawn(8, 13)
    normalized = op.batch_norm(x.float(), mean.float(), mean.float() + 0.5)
    expected = torch.nn.functional.batch_norm(x, mean, mean + 0.5) @ weight
    assert_close(op.matmul(normalized, weight.float()), expected)


def test_a_scaled_product_on_gpus() -> None:
    a, b, rows = drawn(17, 24), drawn(24, 9), drawn(17, 3)
    x, w, v = (op.tensor(each.float()).to("interpreter") for each in (a, b, rows))
    assert_close((x * op.max(v, axis=1, keepdims=True)) @ w, (a * rows.amax(1, keepdim=True)) @ b)


REDUCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": (lambda x: op.sum(x, axis=(1, 2, 3)), lambda x: x.sum((1, 2, 3))),
    "variance": (lambda x: op.var(x, axis=(1, 2, 3), keepdims=True), lambda x: x.var((1, 2, 3), keepdim=True)),
    "less its mean": (lambda x: x - op.mean(x, axis=(2, 3), keepdims=True), lambda x: x - x.mean((2, 3), keepdim=True)),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images", [1, 2])
def test_whole_images_are_reduced_after_a_bias_of_channels(
    reduction: str, layout: torch.memory_format, images: int
) -> None:
    x, bias = drawn(images, 16, 7, 5), drawn(16, 1, 1)
    made, expected = REDUCTIONS[reduction]
    shifted = op.tensor(x.float().contiguous(memory_format=layout)) * bias.float() + bias.float()
    assert_close(made(shifted), expected(x * bias + bias))


def test_a_reduction_over_images_whose_result_is_a_part_of_another() -> None:
    x, other = drawn(2, 3, 5, 7), drawn(2, 3, 5, 2)
    centred = op.tensor(x.float()) - op.mean(op.tensor(x.float()), axis=(1, 2, 3), keepdims=True)
    expected = torch.cat([x - x.mean((1, 2, 3), keepdim=True), other], 3)
    assert_close(op.concat([centred, other.float()], axis=3), expected)


def test_a_pooled_image_is_reduced_over_dimensions_that_lie_apart_in_memory() -> None:
    x = drawn(2, 3, 5, 7)
    pooled = op.transpose(op.max_pool2d(x.float(), 1), (1, 3, 0, 2))
    assert_close(op.mean(pooled, axis=(0, 1, 2)), x.mean((0, 1, 3)))


def test_empty_outputs_may_have_any_strides() -> None:
    out = torch.empty(0, 3).t()
    assert (op.tensor(torch.empty(3, 0)) + 1).eval(out=out).shape == (3, 0)
    strided = torch.empty(4, 0, 2)[:, :, 0]
    assert (op.tensor(torch.empty(4, 0)) + 1).eval(out=strided).shape == (4, 0)
