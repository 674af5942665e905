"""Empty extents: what reduces, multiplies or maps nothing reads nothing, and gives torch's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op

SHAPES = [((16,), (0, 1)), ((1, 16), (0, 1)), ((0, 16), (1, 16)), ((3, 1), (1, 0)), ((0, 1, 5), (4, 1)), ((2, 0), (1,))]

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, m: m.sum(x),
    "mean": lambda x, m: m.mean(x),
    "var": lambda x, m: m.var(x),
    "prod": lambda x, m: m.prod(x),
    "logsumexp": lambda x, m: m.logsumexp(x, tuple(range(x.ndim))),
}


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", sorted(REDUCTIONS))
@pytest.mark.parametrize("meet", ["add", "maximum"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of a variance of nothing
def test_a_reduction_of_an_empty_broadcast_reads_nothing(
    shapes: tuple[tuple[int, ...], ...], kind: str, meet: str
) -> None:
    operands = [torch.ones(shape, dtype=torch.float64) for shape in shapes]
    result = REDUCTIONS[kind](getattr(op, meet)(*operands), op).torch()
    expected = REDUCTIONS[kind](getattr(torch, meet)(*operands), torch)
    torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 16), (0, 1), (2, 0)])
def test_strides_of_nothing_promise_no_element(shape: tuple[int, ...]) -> None:
    nothing = torch.empty(0).as_strided(shape, (0, 0))
    assert op.sum(op.maximum(torch.ones(1), nothing)).item() == 0
    assert op.sum(op.maximum(torch.ones(1), nothing.numpy())).item() == 0


def test_products_over_nothing_read_nothing() -> None:
    rows, columns = torch.empty(0).as_strided((3, 0), (0, 0)), torch.empty(0).as_strided((0, 5), (0, 0))
    assert torch.equal((op.matmul(rows, columns) + 1).torch(), torch.ones(3, 5))
