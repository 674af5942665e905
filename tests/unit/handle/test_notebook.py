"""What a notebook shows of a tensor: its outermost values where it has any, and it never computes."""

from __future__ import annotations

import re

import pytest
import torch

from tessera import Tensor, op


def values(tensor: Tensor) -> list[str]:
    """The cells of the table that a notebook shows."""
    return re.findall(r"<td[^>]*>([^<]*)</td>", tensor._repr_html_())


def test_a_pending_tensor_stays_pending() -> None:
    y = op.relu(torch.ones(3)) + 1
    shown = y._repr_html_()
    assert y.is_pending
    assert shown.startswith("<pre")
    assert "Tensor([3], fp32, pending: " in shown


@pytest.mark.parametrize(
    ("data", "dtype", "wanted"),
    [
        ([[1, 2], [3, 4]], "int32", ["1", "2", "3", "4"]),
        ([1.5, -0.25], "bf16", ["1.5", "-0.25"]),
        ([1.5, 2.0], "fp8_e4m3", ["1.5", "2"]),
        ([True, False], "bool", ["True", "False"]),
        ([float("nan"), float("inf")], "fp32", ["nan", "inf"]),
        ([1 + 2j], "complex64", ["1+2j"]),
        (7, "int64", ["7"]),
    ],
)
def test_values_of_all_dtypes(data: object, dtype: str, wanted: list[str]) -> None:
    tensor = op.tensor(data, dtype).eval()
    assert values(tensor) == wanted
    assert dtype in tensor._repr_html_()


def test_a_large_matrix_shows_its_corners() -> None:
    tensor = op.tensor(torch.arange(300 * 400, dtype=torch.int64).reshape(300, 400))
    found = values(tensor)
    assert len(found) == 9 * 9
    assert found[:9] == ["0", "1", "2", "3", "…", "396", "397", "398", "399"]
    assert found[4 * 9 : 5 * 9] == ["…"] * 9
    assert found[-1] == str(300 * 400 - 1)


def test_of_more_dimensions_the_first_matrix_is_shown() -> None:
    tensor = op.tensor(torch.arange(24).reshape(2, 3, 2, 2))
    assert values(tensor) == ["0", "1", "2", "3"]
    assert "the matrix at [0, 0]" in tensor._repr_html_()


def test_an_empty_tensor_has_its_title_alone() -> None:
    tensor = op.tensor(torch.zeros(0, 3))
    assert "Tensor([0, 3], fp32)" in tensor._repr_html_()
    assert values(tensor) == []


def test_inside_of_a_kernel_it_is_the_description() -> None:
    seen = []

    @op.kernel
    def body(x: Tensor) -> Tensor:
        seen.append(x._repr_html_())
        return x + 1

    body(op.tensor(torch.ones(2))).eval()
    assert "argument of a traced function" in seen[0]
