"""The work of an operator: operations that its tile body says over the axes of its anchor, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tessera.dtypes import DType, bf16, bool_, fp32, int32
from tessera.ops import OPERATORS
from tessera.ops.attention.trained import COTANGENTS, LOGARITHMS, SCORED_LOGARITHMS
from tessera.ops.counting import bytes_of, flops_of
from tessera.ops.record import Shaped

X: Final = (4, 6, 8)
SIZE: Final = 4 * 6 * 8
ROWS: Final = 4 * 6
WINDOW: Final[Mapping[str, Any]] = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1, 0, 0), "dilation": (1, 1)}


def counted(name: str, *shapes: tuple[int, ...], dtype: DType = fp32, **attributes: Any) -> int:
    record = OPERATORS[name]
    given = {**record.attributes, **attributes}
    operands = [Shaped(shape, dtype) for shape in shapes]
    if name == "where":
        operands[0] = Shaped(shapes[0], bool_)
    cast = record.operand_dtypes(name, operands, given)
    shape, result = record.result_of(operands, cast, given)
    known = [Shaped(each.shape, kind) for each, kind in zip(operands, cast, strict=True)]
    return flops_of(record, known, Shaped(shape, result), given)


@pytest.mark.parametrize(
    ("name", "per_element"),
    [("add", 1), ("exp", 1), ("eq", 1), ("sigmoid", 4), ("gelu", 5), ("where", 0), ("cast", 0), ("log2", 2)],
)
def test_a_map_does_what_its_body_says_for_each_element(name: str, per_element: int) -> None:
    shapes = [X, (8,), (6, 1)][: OPERATORS[name].arity[1]]
    assert counted(name, *shapes) == per_element * SIZE


def test_attributes_and_dtypes_decide_what_a_body_does() -> None:
    assert counted("clamp", X, maximum=1.0) == SIZE
    assert counted("clamp", X, minimum=0.0, maximum=1.0) == 2 * SIZE
    assert counted("gelu", X, approximate="tanh") == 9 * SIZE
    assert (counted("floor", X), counted("floor", X, dtype=int32)) == (SIZE, 0)


def test_what_is_left_of_a_row_is_computed_once_a_row() -> None:
    assert counted("sum", X, axes=(2,)) == SIZE
    assert counted("mean", X, axes=(2,)) == SIZE + ROWS
    assert counted("mean", X, axes=(0, 1, 2)) == SIZE + 1
    assert counted("softmax", X, axis=2) == 5 * SIZE + ROWS
    assert counted("rms_norm", X, (8,)) == 4 * SIZE + 3 * ROWS
    assert counted("layer_norm", X, (8,), (8,), dtype=bf16) == 7 * SIZE + 4 * ROWS


def test_products_count_points() -> None:
    assert counted("matmul", (3, 4, 5), (5, 7)) == 2 * 3 * 4 * 5 * 7
    product = 2 * 4 * 5 * 7
    assert counted("gemm", (4, 5), (5, 7), (7,)) == product + 4 * 7
    assert counted("gemm", (4, 5), (5, 7), (4, 7), alpha=2.0, beta=0.5) == product + 3 * 4 * 7
    assert counted("gemm", (4, 5), (5, 7), (4, 7), beta=0.0) == product
    # [2, 9, 8, 6] padded by a row above and below: 5 x 7 results.
    assert counted("max_pool2d", (2, 3, 9, 8), **WINDOW) == 2 * 3 * (5 * 7) * 6
    assert counted("depthwise_conv2d", (2, 3, 9, 8), (3, 3, 2), **WINDOW) == 2 * 2 * 3 * (5 * 7) * 6
    strides: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0, 1, 0), "groups": 2}
    assert counted("conv2d", (2, 9, 8, 6), (10, 3, 3, 2), **strides) == 2 * 2 * (5 * 7) * 10 * 3 * 6


def test_of_nothing_nothing_is_computed() -> None:
    assert counted("softmax", (0, 8), axis=1) == 0
    assert counted("matmul", (3, 0), (0, 4)) == 0


def test_only_what_no_map_tells_has_a_rule() -> None:
    """Attention counts its products alone, over the keys that are seen, as the literature does."""
    ruled = {name for name, record in OPERATORS.items() if record.flops is not None and not record.kind.is_call}
    rows = {"flash_attention", "scored_attention", "paged_attention", "scaled_attention"}
    assert ruled == {*rows, LOGARITHMS, SCORED_LOGARITHMS, *COTANGENTS.values()}


def test_bytes_are_those_of_operands_and_result() -> None:
    operands = [Shaped((4, 5), bf16), Shaped((5, 7), bf16), Shaped((), fp32, weak=True)]
    assert bytes_of(OPERATORS["gemm"], operands, Shaped((4, 7), bf16), {}) == 2 * (20 + 35 + 28)
    x, index = Shaped((1000, 8), fp32), Shaped((3,), int32)
    assert bytes_of(OPERATORS["take"], [x, index], Shaped((3, 8), fp32), {}) == 2 * 3 * 8 * 4 + 3 * 4
