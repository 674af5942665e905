"""Dtypes and shapes of several operands, compared with torch for every pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import op
from tessera.errors import DTypeError, ShapeMismatchError
from tessera.lazy.structures.promotion import broadcast_shape

DTYPES = [torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(DTYPES, DTYPES)), ids=str)
def test_arithmetic_has_torchs_result_dtype(first: torch.dtype, second: torch.dtype) -> None:
    for shape_a, shape_b in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
        a, b = torch.ones(shape_a, dtype=first), torch.ones(shape_b, dtype=second)
        assert op.add(a, b).dtype.torch == (a + b).dtype
        assert op.div(a, b).dtype.torch == (a / b).dtype
        assert op.maximum(a, b).dtype.torch == torch.maximum(a, b).dtype
        assert op.where(torch.tensor(True), a, b).dtype.torch == torch.where(torch.tensor(True), a, b).dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_variable_have_torchs_result_dtype(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf"):
        assert getattr(op, name)(x).dtype.torch == getattr(torch, name)(x).dtype, name


def test_what_torch_refuses_is_refused_at_the_call() -> None:
    flags, numbers = torch.tensor([True]), torch.tensor([1])
    refused: list[Callable[[], object]] = [
        lambda: op.sub(flags, flags),
        lambda: op.neg(flags),
        lambda: op.abs(flags),
        lambda: op.relu(flags),
        lambda: op.gelu(numbers),
        lambda: op.silu(numbers),
        lambda: op.where(numbers, numbers, numbers),
        lambda: op.matmul(torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)),
    ]
    for call in refused:
        with pytest.raises(DTypeError):
            call()


shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=3))
def test_shapes_broadcast_as_torchs(given_shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*given_shapes))  # type: ignore[no-untyped-call]
    except RuntimeError:
        assert broadcast_shape(given_shapes) is None
    else:
        assert broadcast_shape(given_shapes) == expected


def test_a_shape_error_names_both_shapes_and_the_users_line() -> None:
    with pytest.raises(ShapeMismatchError) as caught:
        op.add(torch.ones(3, 4), torch.ones(5))
    assert "(3, 4)" in caught.value.message
    assert "(5,)" in caught.value.message
    assert caught.value.where is not None
    assert "test_promotion.py" in caught.value.where
