"""`rand`, `randn` and `randint`: their distributions, and that a seed says all."""

from __future__ import annotations

import math

import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor

COUNT = 1 << 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform_numbers(dtype: torch.dtype) -> None:
    """Bounds, mean and variance within five standard errors, and a chi-squared test over 16 bins at 1 in 10^6 (15
    degrees of freedom: 58).
    """
    numbers = op.rand(COUNT, seed=3, dtype=dtype).torch()
    assert numbers.dtype == dtype
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    wide = numbers.double()
    step = torch.finfo(dtype).eps / 2
    assert abs(float(wide.mean()) - (0.5 - step / 2)) < 5 / math.sqrt(12 * COUNT)
    found = torch.histc(wide, 16, 0.0, 1.0)
    assert float(((found - COUNT / 16) ** 2 / (COUNT / 16)).sum()) < 58


def test_normal_numbers() -> None:
    """Moments within five standard errors, and a chi-squared test over 10 equally likely bins (9 degrees of freedom, 1
    in 10^6: 45).
    """
    numbers = op.randn((COUNT // 4, 4), seed=3, dtype="fp64").torch().flatten()
    assert abs(float(numbers.mean())) < 5 / math.sqrt(COUNT)
    assert abs(float((numbers**2).mean()) - 1) < 5 * math.sqrt(2 / COUNT)
    assert abs(float((numbers**3).mean())) < 5 * math.sqrt(15 / COUNT)
    shares = torch.histc(torch.special.ndtr(numbers), 10, 0.0, 1.0)
    assert float(((shares - COUNT / 10) ** 2 / (COUNT / 10)).sum()) < 45
    neighbours = (numbers[1:] * numbers[:-1]).mean()
    assert abs(float(neighbours)) < 5 / math.sqrt(COUNT)


def test_integers() -> None:
    numbers = op.randint(-3, 4, COUNT, seed=1).torch()
    assert numbers.dtype == torch.int64
    found = torch.bincount(numbers + 3)
    assert len(found) == 7
    assert float(((found - COUNT / 7) ** 2 / (COUNT / 7)).sum()) < 45  # 6 degrees of freedom, 1 in 10^6: 39
    assert op.randint(5, 6, (2, 2), seed=0).tolist() == [[5, 5], [5, 5]]
    whole = op.randint(0, 1 << 31, COUNT, seed=2).torch()
    assert int(whole.max()) > (1 << 31) - (1 << 18)


def test_a_seed_says_all() -> None:
    @op.kernel
    def noisy(x: Tensor, seed: int) -> Tensor:
        made: Tensor = x + op.randn(x.shape, seed)
        return made

    zeros = torch.zeros(7, 5)
    plain = op.randn((7, 5), 4).torch()
    torch.testing.assert_close(noisy(zeros, 4).torch(), plain)  # type: ignore[arg-type]
    assert not torch.equal(noisy(zeros, 5).torch(), plain)  # type: ignore[arg-type]
    assert torch.equal(op.randn((7, 5), torch.tensor(4)).torch(), plain)
    assert torch.equal((op.randn((7, 5), 4) * 1).pin(tile=(1, 16)).torch(), plain)
    assert op.rand((0, 3), 1).torch().shape == (0, 3)


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rand: seed=-1"):
        op.rand(3, -1)
    with pytest.raises(ArgumentError, match="randn: a seed of shape"):
        op.randn(3, torch.ones(2, dtype=torch.int64))
    with pytest.raises(DTypeError, match="rand of int64"):
        op.rand(3, 0, "int64")
    with pytest.raises(ArgumentError, match="randint from 3 to 3"):
        op.randint(3, 3, 2, 0)
