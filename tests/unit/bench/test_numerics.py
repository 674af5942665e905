"""The table of errors: what it counts, that it is not worse than torch's, and that it comes to stand in the page."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from bench.numerics import command, functions, kernels
from bench.numerics.functions import DTYPES, FUNCTIONS, Function, arguments
from bench.numerics.kernels import Kernel
from bench.numerics.measures import ErrorRow, relative_error, spacing, ulp_error
from tests.whole import some

ENOUGH_ULP = 1.75
"""Vector functions that are nearer than this to float64 may be less near than torch's."""

ENOUGH_EPS = 8.0
TWICE = 2.0
"""Sums of some hundred or thousand terms in fp32 that are nearer than this many epsilons, or within twice of torch's,
count as alike: the order of additions is the schedule's, and luck has its part."""


def test_spacing_is_the_distance_between_neighbours() -> None:
    values = torch.tensor([1.0, 1.5, -2.0, 0.0, 2.0**-126, 2.0**-140], dtype=torch.float64)
    wanted = [2.0**-23, 2.0**-23, 2.0**-22, 2.0**-149, 2.0**-149, 2.0**-149]
    assert spacing(values, torch.float32).tolist() == wanted


def test_an_error_is_counted_in_spacings() -> None:
    exact = torch.tensor([1.0, 4.0, float("nan"), 1e39], dtype=torch.float64)
    result = torch.tensor([1.0 + 2.0**-22, 4.0, float("nan"), float("inf")])
    assert ulp_error(result, exact) == 2.0
    assert ulp_error(torch.full((4,), 1.0), exact) == float("inf")
    assert relative_error(result[:2], exact[:2]) == pytest.approx(0.5)


def test_arguments_leave_out_no_exponent() -> None:
    x = arguments(torch.float32, 1 << 16)
    exponents = torch.frexp(x[x.isfinite() & (x != 0)])[1]
    assert set(exponents.tolist()) >= set(range(-125, 129))
    assert x.isnan().any()
    assert len(arguments(torch.bfloat16)) == 1 << 16


@pytest.mark.parametrize(
    ("function", "dtype"),
    some(product(FUNCTIONS, DTYPES), lambda case: case[0].name),
    ids=lambda part: getattr(part, "name", part),
)
def test_functions_are_no_worse_than_torchs(function: Function, dtype: str) -> None:
    found = functions.row(function, dtype, stride=30011)
    allowed = {"erf": 5.0}.get(function.name, ENOUGH_ULP) if dtype == "fp32" else 0.51
    assert found.ours <= max(1.1 * found.torch, allowed)


@pytest.mark.parametrize("kernel", some(kernels.kernels()), ids=lambda kernel: kernel.name)
def test_kernels_are_no_worse_than_torchs(kernel: Kernel) -> None:
    for dtype in kernel.dtypes:
        found = kernels.row(kernel, dtype)
        assert found.ours <= (max(TWICE * found.torch, ENOUGH_EPS) if dtype == "fp32" else max(1.1 * found.torch, 0.55))


def test_a_verdict_names_who_is_nearer() -> None:
    def verdict(ours: float, theirs: float) -> str:
        return ErrorRow("exp", "fp32", "", "ulp", ours, theirs).verdict

    assert verdict(0.5, 0.4) == "alike"
    assert verdict(1.0, 0.95) == "alike"
    assert verdict(1.0, 0.6) == "torch"
    assert verdict(1.0, float("inf")) == "Tessera"


def test_the_table_replaces_what_stands_in_the_page(tmp_path: Path) -> None:
    page = tmp_path / "numerics.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    text = command.table([ErrorRow("exp", "fp32", "all", "ulp", 0.75, 12.345)])
    command.write(text, page)
    assert "| exp | fp32 | all | ulp | 0.75 | 12.3 | Tessera |" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
    assert "old" not in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        command.write(text, page)
