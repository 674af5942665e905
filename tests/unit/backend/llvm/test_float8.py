"""8-bit floats on the CPU: every conversion gives torch's bits, rounding follows the rules that dtypes.py states."""

from __future__ import annotations

import math

import pytest
import torch

from tessera import op
from tessera.backend.llvm.emission import literals
from tessera.backend.llvm.emission.values import E4M3, E5M2, Element

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def every(dtype: torch.dtype) -> torch.Tensor:
    """All 256 values of an 8-bit float."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def around_every_boundary(dtype: torch.dtype) -> torch.Tensor:
    """fp32 numbers: all values of an 8-bit float, the points halfway between them, their neighbours, all beyond."""
    values = every(dtype).float()
    values = values[values.isfinite()].sort().values
    points = torch.cat(
        [values, (values[1:] + values[:-1]) / 2, values * 2, torch.tensor([464.0, 480.0, 61440.0, 65536.0])]
    )
    infinity = torch.tensor(math.inf)
    special = torch.tensor([math.inf, -math.inf, math.nan, -math.nan, 0.0, -0.0, 1e-45, -1e-45, 3e38])
    return torch.cat([points, -points, points.nextafter(infinity), points.nextafter(-infinity), special])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", FLOAT8, ids=str)
def test_rounding_gives_torchs_bits(source: torch.dtype, target: torch.dtype) -> None:
    drawn = torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 16,), generator=torch.Generator().manual_seed(0))
    numbers = torch.cat([around_every_boundary(target), drawn.to(torch.int32).view(torch.float32)]).to(source)
    assert torch.equal(bits(op.cast(numbers, target).torch()), bits(numbers.to(target)))


@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 17, 33])
def test_parts_of_vectors_are_rounded_alike(count: int, target: torch.dtype) -> None:
    numbers = around_every_boundary(target)[: 3 * count : 3]
    assert torch.equal(bits(op.cast(numbers, target).torch()), bits(numbers.to(target)))


@pytest.mark.parametrize("source", [torch.bool, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("target", FLOAT8, ids=str)
def test_integers_are_rounded_as_torch_rounds_them(source: torch.dtype, target: torch.dtype) -> None:
    numbers = torch.arange(-70_000, 70_000, 7).to(source)
    assert torch.equal(bits(op.cast(numbers, target).torch()), bits(numbers.to(target)))


@pytest.mark.parametrize("target", [torch.float32, torch.float64, *FLOAT8], ids=str)
@pytest.mark.parametrize("source", FLOAT8, ids=str)
def test_widening_gives_torchs_bits(source: torch.dtype, target: torch.dtype) -> None:
    values = every(source)
    assert torch.equal(bits(op.cast(values, target).torch()), bits(values.to(target)))


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("source", FLOAT8, ids=str)
def test_16_bits_hold_every_value(source: torch.dtype, target: torch.dtype) -> None:
    values = every(source)
    result = op.cast(values, target).torch().float()
    assert torch.equal(result.isnan(), values.float().isnan())
    kept = ~result.isnan()
    assert torch.equal(bits(result[kept]), bits(values.float()[kept]))


@pytest.mark.parametrize("target", [torch.bool, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", FLOAT8, ids=str)
def test_integers_are_truncated_and_bool_tests_for_non_zero(source: torch.dtype, target: torch.dtype) -> None:
    values = every(source)
    if target is not torch.bool:
        values = values[values.float().isfinite()]  # the others have no integer
    assert torch.equal(op.cast(values, target).torch(), values.to(target))


def test_what_is_too_large_saturates_in_e4m3_and_is_infinite_in_e5m2() -> None:
    large = torch.tensor([448.0, 465.0, 1e9, -1e9, math.inf, -math.inf])
    assert op.cast(large, "fp8_e4m3").tolist() == [448.0, 448.0, 448.0, -448.0, 448.0, -448.0]
    large = torch.tensor([57344.0, 61439.0, 61440.0, -61440.0, math.inf, -math.inf])
    infinite = [math.inf, -math.inf, math.inf, -math.inf]
    assert op.cast(large, "fp8_e5m2").tolist() == [57344.0, 57344.0, *infinite]


@pytest.mark.parametrize(("element", "dtype"), [(E4M3, FLOAT8[0]), (E5M2, FLOAT8[1])], ids=["e4m3", "e5m2"])
def test_literals_are_rounded_as_tensors_are(element: Element, dtype: torch.dtype) -> None:
    numbers = torch.cat([around_every_boundary(dtype)[::5], torch.tensor([0.0, -0.0])])
    numbers = numbers[~numbers.isnan()]
    expected = numbers.to(dtype).view(torch.int8).tolist()
    assert [int(literals.literal(element, number)) for number in numbers.tolist()] == expected
    assert int(literals.literal(element, math.nan)) == 0x7F
