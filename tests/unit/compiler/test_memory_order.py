"""Results of maps lie as what they are made from; reductions walk what is contiguous."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tests.property.checking import evaluated
from tests.unit.compiler.interpreting import interpreted
from tests.whole import examples

LAST = torch.channels_last


def image(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An image [N, C, H, W] whose channels lie together."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype).to(memory_format=LAST)


def test_maps_of_images_with_channels_last_keep_them_there() -> None:
    x, y = image(2, 5, 7, 6), image(2, 5, 7, 6, seed=1)
    scale = torch.randn(5, 1, 1)
    result = evaluated(op.relu(op.tensor(x) * scale + y))
    assert result.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(result, torch.relu(x * scale + y))


def test_batch_norm_keeps_channels_last() -> None:
    x = image(2, 5, 4, 3)
    mean, var, weight, bias = (torch.rand(5) + 0.5 for _ in range(4))
    result = op.batch_norm(x, mean, var, weight, bias).torch()
    assert result.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(result, torch.nn.functional.batch_norm(x, mean, var, weight, bias))


def test_what_operands_do_not_share_is_contiguous() -> None:
    x, y = image(2, 5, 7, 6), torch.randn(2, 5, 7, 6)
    result = evaluated(op.tensor(x) + y)
    assert result.is_contiguous()
    assert torch.equal(result, x + y)
    every_second = image(2, 5, 7, 12)[..., ::2]
    assert op.relu(every_second).torch().is_contiguous(), "not dense, and so no order to keep"


@settings(max_examples=examples(8, 15))
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_every_permutation_is_kept(shape: list[int], random: object) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    x = torch.randn(shape).permute(order)
    y = torch.randn(shape).permute(order)
    expected = x * y
    result = evaluated(op.tensor(x) * y)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride() or 1 in shape, "strides along extents of 1 are anything"
    if len(set(result.stride())) == len(shape) and 1 not in shape:
        assert torch.equal(interpreted(op.tensor(x) * y).as_strided(result.shape, result.stride()), expected)


def test_what_is_read_in_one_piece_is_made_contiguous() -> None:
    x = image(2, 8, 3, 5)
    flat = op.reshape(op.relu(x) * 2.0, (2, -1))
    assert torch.equal(evaluated(flat), (torch.relu(x) * 2).reshape(2, -1))


def test_numbers_of_elements_are_those_of_the_shape() -> None:
    x = image(2, 3, 4, 5)
    again = op.dropout(x.contiguous(), 0.5, seed=3).torch()
    assert torch.equal(op.dropout(x, 0.5, seed=3).torch(), again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 40])
def test_reductions_over_channels_that_lie_last(channels: int, dtype: torch.dtype) -> None:
    x = image(2, channels, 6, 5, dtype=dtype)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    wide = x.double()
    for ours, theirs in (
        (op.sum(op.tensor(x), axis=1), wide.sum(1)),
        (op.max(op.tensor(x), axis=1), wide.amax(1)),
        (op.softmax(op.tensor(x), axis=1), wide.softmax(1)),
        (op.mean(op.tensor(x), axis=(2, 3)), wide.mean((2, 3))),
        (op.softmax(op.tensor(x), axis=3), wide.softmax(3)),
    ):
        torch.testing.assert_close(evaluated(ours).double(), theirs, rtol=tolerance, atol=tolerance)
    assert torch.equal(evaluated(op.argmax(op.tensor(x), axis=1)), x.argmax(1))


def test_rows_of_a_transposed_matrix() -> None:
    x = torch.randn(50, 33).T
    torch.testing.assert_close(evaluated(op.softmax(op.tensor(x), axis=-1)), x.softmax(-1))
    normed = op.layer_norm(op.tensor(x), torch.ones(50), torch.zeros(50))
    torch.testing.assert_close(evaluated(normed), torch.nn.functional.layer_norm(x, (50,)), rtol=1e-4, atol=1e-5)


def test_nan_stays_where_it_was() -> None:
    x = image(1, 4, 3, 3)
    x[0, 2, 1, 1] = float("nan")
    assert op.relu(x).torch().isnan().nonzero().tolist() == [[0, 2, 1, 1]]
    assert op.sum(op.tensor(x), axis=1).torch().isnan().nonzero().tolist() == [[0, 1, 1]]


def test_out_of_another_order_is_filled_all_the_same() -> None:
    x, out = image(2, 3, 4, 5), torch.empty(2, 3, 4, 5)
    for _ in range(2):
        op.add(x, 1.0).eval(out=out)
        assert torch.equal(out, x + 1)


def test_on_the_gpu_interpreter_too() -> None:
    x = image(2, 5, 3, 4)
    result = op.relu(op.tensor(x, device="interpreter") + 1.0).torch()
    assert torch.equal(result, torch.relu(x + 1))
    rows = op.softmax(op.tensor(x, device="interpreter"), axis=1).torch()
    torch.testing.assert_close(rows, x.softmax(1))
