"""Arguments that a call of a kernel leaves out: legal for what is added to a product, and for defaults of None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op
from tessera.errors import MissingArgumentError

_x, _w = torch.randn(4, 5), torch.randn(5, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, target: (target + x).sum(),
        lambda x, target: (x + target).sum(),
        lambda x, target: (op.relu(x) + target).sum(),
        lambda x, target: op.sum(x) + target,
        lambda x, target: x - target,
        lambda x, target: target,
        lambda x, target: (x, target),
        lambda x, target: x,
        lambda x, target: op.relu(target) + x @ x,
        lambda x, target: op.gemm(x, x, target),
        lambda x, target: op.concat([x, target]),
        lambda x, target: op.where(x == target, x, 0.0),
        lambda x, target: (x > 0) & target,
        lambda x, target: (x @ x + target, target),
        lambda x, target: (x @ x + target) * op.exp(target),
    ],
)
def test_a_forgotten_argument_is_an_error(function: Callable[..., Any]) -> None:
    with pytest.raises(MissingArgumentError):
        op.kernel(function)(torch.ones(2, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, bias: x @ w + bias,
        lambda x, w, bias: bias + x @ w,
        lambda x, w, bias: (x @ w) * 1.0 + bias,
        lambda x, w, bias=None: x @ w if bias is None else x @ w + bias,
    ],
)
def test_a_term_of_a_product_may_be_missing(function: Callable[..., Any]) -> None:
    torch.testing.assert_close(op.kernel(function)(_x, _w).torch(), _x @ _w, atol=1e-5, rtol=1e-5)
