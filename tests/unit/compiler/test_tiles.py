"""`tile_shape=`: what no kernel can have is refused at the call, the rest at evaluation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import op
from tessera.errors import ShapeMismatchError, TuneSpaceEmptyError

A, B = torch.randn(6, 8), torch.randn(8, 5)


@pytest.mark.parametrize("multiply", [op.matmul, op.gemm])
@pytest.mark.parametrize("tile", [(96, 128, 7), (96, 1, 64)], ids=["odd depth", "narrower than a vector"])
def test_an_impossible_tile_is_refused_at_the_call(multiply: Callable[..., object], tile: tuple[int, int, int]) -> None:
    with pytest.raises(TuneSpaceEmptyError, match=r"tile in \[\(96, ") as raised:
        multiply(A, B, tile_shape=tile)
    assert any("block-holds-tile" in hint for hint in raised.value.hints)
    assert "test_tiles.py" in str(raised.value.where)


def test_shapes_that_do_not_fit_are_the_first_thing_to_say() -> None:
    with pytest.raises(ShapeMismatchError):
        op.matmul(A, A, tile_shape=(96, 128, 7))


def test_a_tile_that_only_some_expressions_can_have_is_refused_at_evaluation() -> None:
    # Sums over several blocks need an output of fp32, which the cast behind the product gives them.
    a, b = torch.randn(200, 256).bfloat16(), torch.randn(256, 64).bfloat16()
    product = op.matmul(a, b, tile_shape=(96, 128, 64))
    expected = a.double() @ b.double()
    torch.testing.assert_close(product.to("fp32").torch().double(), expected, rtol=2e-2, atol=0.2)
    with pytest.raises(TuneSpaceEmptyError):
        op.matmul(a, b, tile_shape=(96, 128, 64)).eval()
