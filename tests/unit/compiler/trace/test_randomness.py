"""Random numbers drawn while a kernel is traced are refused: they would be the same at every call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import op
from tessera.errors import FrozenRandomError
from tessera.handle import Tensor

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "randn": lambda: torch.randn(3),
    "rand_like": lambda: torch.rand_like(torch.ones(3)),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), 0.5)),
    "in place": lambda: torch.empty(3).uniform_(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3)),
    "a generator of the user's": lambda: torch.randn(3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_drawing_in_a_kernel_is_refused_where_it_is_traced(draw: Callable[[], torch.Tensor]) -> None:
    @op.kernel
    def noisy(x: Tensor) -> Tensor:
        return op.add(x, draw())

    with pytest.raises(FrozenRandomError, match="which happens once") as raised:
        noisy(torch.ones(3))  # type: ignore[arg-type]
    assert raised.value.code == "E_FROZEN_RANDOM"


def test_what_is_drawn_outside_or_by_a_seed_is_taken() -> None:
    noise = torch.randn(3)

    @op.kernel
    def added(x: Tensor, seed: int) -> Tensor:
        return op.dropout(x + noise + torch.ones(3).cumsum(0), 0.5, seed)

    assert added(torch.ones(3), 7).torch().shape == (3,)  # type: ignore[arg-type]
    assert not torch.equal(torch.randn(64), torch.randn(64))
