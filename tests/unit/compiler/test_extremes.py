"""Numbers at the ends of their formats: denormals are kept, overflow is infinite where torch's is, NaN stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import op

TINY = st.floats(-(2.0**-126), 2.0**-126, width=32, allow_subnormal=True)
LENGTHS = st.integers(1, 70)


def _equal(found: object, expected: torch.Tensor) -> None:
    torch.testing.assert_close(op.tensor(found).torch(), expected, rtol=0, atol=0, equal_nan=True)


@given(st.lists(TINY, min_size=1, max_size=70))
def test_denormals_go_through_arithmetic_as_in_torch(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    _equal(op.tensor(x) * 0.5, x * 0.5)
    _equal(op.add(x, x.flip(0)), x + x.flip(0))
    _equal(op.maximum(op.neg(x), x), torch.maximum(-x, x))
    _equal(op.relu(x), torch.relu(x))
    _equal(op.abs(x), x.abs())


@given(LENGTHS, st.integers(0, 1 << 16))
def test_products_and_sums_keep_denormals(length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Whole multiples of the smallest denormal: sums in any order are exact.
    x = torch.randint(-9, 9, (3, length), generator=generator).float() * 2.0**-149
    ones = torch.ones(length, 5)
    _equal(op.matmul(x, ones), x @ ones)
    _equal(op.sum(x, axis=1), (x.double().sum(1)).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_that_are_denormals_of_16_bits_are_not_flushed(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = x[x.abs() < 4 * torch.finfo(dtype).tiny]
    _equal(op.tensor(x) * 0.5, x * 0.5)
    _equal(op.cast(x.float() * 0.25, dtype), (x.float() * 0.25).to(dtype))


OVERFLOWING: list[tuple[str, Callable[[torch.Tensor], object], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("double", lambda x: op.tensor(x) * 2.0, lambda x: x * 2.0),
    ("sum of two", lambda x: op.add(x, x), lambda x: x + x),
    ("exp", op.exp, torch.exp),
    ("sum", lambda x: op.sum(x, axis=-1), lambda x: x.sum(-1)),
    # Of magnitudes: where infinities of both signs meet, the order of sums decides between infinity and NaN.
    ("product", lambda x: op.matmul(x.abs(), x.abs().T), lambda x: x.abs() @ x.abs().T),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), OVERFLOWING, ids=[name for name, *_ in OVERFLOWING])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_overflow_is_infinite_where_torchs_is(
    name: str,
    ours: Callable[[torch.Tensor], object],
    theirs: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([[largest, -largest, 1.0], [largest, largest, 2.0], [3.0, 4.0, largest / 2]]).to(dtype)
    found, expected = op.tensor(ours(x)).torch(), theirs(x)
    assert (found.isinf() == expected.isinf()).all(), name
    assert (found.isnan() == expected.isnan()).all(), name
    assert torch.equal(found[found.isinf()], expected[expected.isinf()])


def test_fp16_overflows_at_the_number_that_rounds_to_the_next_power() -> None:
    x = torch.tensor([65504.0, 65519.0, 65520.0, -65520.0, 1e30])
    assert op.cast(x, "fp16").tolist() == [65504.0, 65504.0, float("inf"), float("-inf"), float("inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sums_of_16_bits_overflow_only_in_the_result(dtype: torch.dtype) -> None:
    # In the middle of the sum the total is beyond fp16; in fp32 it is not, and neither is the result.
    x = torch.tensor([[60000.0, 60000.0, -60000.0, -59000.0]]).to(dtype)
    _equal(op.sum(x, axis=-1), x.float().sum(-1).to(dtype))
