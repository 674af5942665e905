"""The range that docs/precision.md promises: norms up to the root of the largest number, softmax up to that itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tessera import op

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}

NORMS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "layer_norm": (op.layer_norm, lambda x: functional.layer_norm(x, x.shape[-1:], eps=0.0)),
    "rms_norm": (op.rms_norm, lambda x: functional.rms_norm(x, x.shape[-1:], eps=0.0)),
}


def rows(dtype: torch.dtype, length: int, largest: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    unit = torch.rand(6, length, generator=generator, dtype=torch.float64) * 2 - 1
    return (unit * largest).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(NORMS))
@pytest.mark.parametrize("length", [2, 17, 300])
def test_norms_hold_up_to_the_root_of_the_largest_number(name: str, length: int, dtype: torch.dtype) -> None:
    ours, theirs = NORMS[name]
    # A difference from the mean may be twice as large as what it is a difference of.
    x = rows(dtype, length, 0.4 * math.sqrt(torch.finfo(dtype).max / length))
    bound = TOLERANCE[dtype]
    expected = theirs(x.double() / float(x.double().abs().max()))
    torch.testing.assert_close(ours(op.tensor(x)).torch().double(), expected, rtol=bound, atol=bound)
    weight = torch.eye(length, dtype=dtype)
    fused = op.matmul(ours(op.tensor(x)), weight).torch().double()
    torch.testing.assert_close(fused, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("length", [1, 3, 40])
def test_softmax_and_logsumexp_hold_up_to_the_largest_number(dtype: torch.dtype, length: int) -> None:
    largest = torch.finfo(dtype).max
    x = rows(dtype, length, largest)
    x[0], x[1] = largest, -largest
    for ours, theirs in (
        (op.softmax(op.tensor(x)), torch.softmax(x, -1)),
        (op.logsumexp(op.tensor(x), -1), torch.logsumexp(x, -1)),
    ):
        torch.testing.assert_close(ours.torch(), theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_spread_is_normalized_to_zero_up_to_a_sum_that_overflows(dtype: torch.dtype) -> None:
    x = torch.full((2, 4), torch.finfo(dtype).max / 4, dtype=dtype)
    assert op.layer_norm(x).tolist() == [[0.0] * 4] * 2
