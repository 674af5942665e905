"""sin and cos of fp32 tensors whose elements are beyond what the expansions reach: the branch to libm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mpmath import mp, mpf

from tessera import op

FUNCTIONS = pytest.mark.parametrize(("ours", "theirs"), [(op.sin, torch.sin), (op.cos, torch.cos)], ids=["sin", "cos"])
Function = Callable[[torch.Tensor], torch.Tensor]


def _far(count: int) -> torch.Tensor:
    exponents = torch.linspace(30, 127.99, count, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(count // 2 + 1)[:count]
    return (signs * torch.exp2(exponents)).float()


@FUNCTIONS
@pytest.mark.parametrize("count", [1, 7, 16, 33, 4099])
def test_all_finite_arguments_are_reduced_with_all_digits_of_pi(ours: Function, theirs: Function, count: int) -> None:
    x = _far(count)
    got = op.tensor(ours(x)).torch()
    assert torch.allclose(got.double(), theirs(x.double()), rtol=2.0**-24, atol=0)


@FUNCTIONS
def test_the_float64_reference_has_these_digits(ours: Function, theirs: Function) -> None:
    x = _far(4099)[::131].double()
    with mp.workdps(80):
        exact = [float(getattr(mp, theirs.__name__)(mpf(value))) for value in x.tolist()]
    assert torch.allclose(theirs(x), torch.tensor(exact, dtype=torch.float64), rtol=1e-12, atol=0)


@FUNCTIONS
def test_neighbours_of_far_arguments_keep_their_bits(ours: Function, theirs: Function) -> None:
    near = torch.linspace(-100, 100, 512)
    mixed = near.clone()
    mixed[::5] = 3e38
    mixed[1::50] = torch.inf
    mixed[2::50] = torch.nan
    expected, got = op.tensor(ours(near)).torch(), op.tensor(ours(mixed)).torch()
    same = mixed == near
    assert torch.equal(got[same], expected[same])
    assert bool(got[~mixed.isfinite()].isnan().all())
    assert bool(got[mixed.isfinite()].isfinite().all())


@FUNCTIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_numbers_far_out_are_rounded_once(ours: Function, theirs: Function, dtype: torch.dtype) -> None:
    x = _far(4099).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    got = op.tensor(ours(x)).torch()
    eps = torch.finfo(dtype).eps
    assert torch.allclose(got.double(), theirs(x.double()), rtol=0.505 * eps, atol=0)
