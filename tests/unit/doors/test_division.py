"""`//`, `%` and `fmod`: torch's results for all signs, sizes and dtypes, and no integer is divided by zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tessera import op
from tessera.errors import DivisionByZeroError
from tessera.ops.algebra import call
from tests.unit.doors.tile_oracle import interpreted

NAMES = ("floor_divide", "remainder", "fmod")
INTEGERS = (torch.int8, torch.int32, torch.int64)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    ends = torch.tensor([limits.min, limits.min + 1, limits.max, limits.max - 1, *range(-9, 10), 63, -100], dtype=dtype)
    source = torch.Generator().manual_seed(3)
    found = [ends, torch.randint(limits.min, limits.max, (60,), dtype=dtype, generator=source)]
    if dtype is torch.int64:  # products, and what is next to them: the quotient is an integer, or nearly one
        a, b = (torch.randint(1, 1 << 31, (40,), generator=source) for _ in range(2))
        found += [a * b, a * b - 1, -a * b, a]
    return torch.cat(found)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: torch.dtype) -> None:
    a, b = _numbers(dtype)[:, None], _numbers(dtype)[None]
    least = torch.iinfo(dtype).min
    unknown = (b == 0) | ((a == least) & (b == -1))  # torch stops the process there
    divisors = torch.where(unknown, 1, b)
    for name in NAMES:
        found = getattr(op, name)(a, divisors).torch()
        assert found.dtype == dtype
        assert torch.equal(found, getattr(torch, name)(a, divisors)), name
    quotients = call("floor_divide", a, b).torch()
    assert torch.equal(quotients.masked_fill(unknown, 0), torch.floor_divide(a, divisors).masked_fill(unknown, 0))
    assert int(quotients[(a == least) & (b == -1)][0]) == least  # integers wrap around
    assert torch.equal(interpreted(call("floor_divide", a[:30], b[:, :30])), quotients[:30, :30])


def test_a_number_on_either_side() -> None:
    x = torch.tensor([-7, -1, 1, 7])
    t = op.tensor(x)
    pairs = ((t // 3, x // 3), (t % -3, x % -3), (10 // t, 10 // x), (-10 % t, -10 % x), (t // 2.5, x // 2.5))
    for ours, theirs in pairs:
        assert torch.equal(ours.torch(), theirs)
    quotient, rest = divmod(t, 3)
    assert (quotient * 3 + rest).tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floats(dtype: torch.dtype) -> None:
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        -2.5,
        7.0,
        -7.0,
        3.3,
        -3.3,
        math.inf,
        -math.inf,
        math.nan,
        0.1,
        -0.1,
        5.999999,
    ]
    numbers = torch.tensor(special, dtype=dtype)
    a, b = numbers[:, None], numbers[None]
    for name in NAMES:
        found, expected = getattr(op, name)(a, b).torch(), getattr(torch, name)(a, b)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        known = ~expected.isnan()
        assert torch.equal(torch.signbit(found)[known], torch.signbit(expected)[known]), name


def test_a_quotient_beyond_the_dtypes_range_has_a_rest() -> None:
    a, b = torch.full((16,), 1e30), torch.full((16,), 1e-30)
    expected = math.fmod(a[0].item(), b[0].item())
    assert op.fmod(a, b).tolist() == pytest.approx([expected] * 16, rel=1e-6)
    assert op.remainder(-a, b).tolist() == pytest.approx([b[0].item() - expected] * 16, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_not_divided_by_zero(name: str) -> None:
    function: Callable[..., object] = getattr(op, name)
    x = torch.tensor([3, 4])
    with pytest.raises(DivisionByZeroError, match="the divisor is 0"):
        function(x, 0)
    pending = op.tensor(function(x, torch.tensor([1, 0])))
    with pytest.raises(ZeroDivisionError, match=r"the divisor is 0 at \(1,\)"):
        pending.eval()
    assert function(x, torch.tensor([1, 2])).tolist()  # type: ignore[attr-defined]


def test_a_number_as_divisor_is_part_of_its_neighbours_kernel() -> None:
    x = op.tensor(torch.arange(100))
    assert ((x * 3) // 7 + 1).inspect("schedule").count("tessera.schedule.kernel") == 1
