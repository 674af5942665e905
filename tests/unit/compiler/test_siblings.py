"""Two products of one A that meet in a map, as in a gated MLP: one kernel over packed constants, the same values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Literal

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import Tensor, numerics, op, profile
from tessera.runtime.memory import buffers
from tessera.target import detect
from tessera.typing import ArrayLike
from tests.unit.compiler.interpreting import interpreted
from tests.whole import examples, some

PRECISION = {torch.float32: 2e-6, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float64: 1e-14}
"""Of the largest possible value of a result, by dtype."""

PolicyName = Literal["deterministic", "strict"]
FIXED: tuple[PolicyName, ...] = ("deterministic", "strict")


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gated(x: ArrayLike, gate: ArrayLike, up: ArrayLike) -> Tensor:
    """silu(x @ gate) * (x @ up)"""
    x = op.tensor(x)  # one operand, where a torch tensor given twice would be two
    return op.mul(op.silu(op.matmul(x, gate)), op.matmul(x, up))


def exact(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, and what its terms add up to."""
    x, gate, up = x.double(), gate.double(), up.double()
    terms = (x.abs() @ gate.abs() + 1) * (x.abs() @ up.abs() + 1)
    return torch.nn.functional.silu(x @ gate) * (x @ up), terms


def check(found: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    expected, terms = exact(x, gate, up)
    assert bool(((found.double() - expected).abs() <= PRECISION[x.dtype] * terms).all())


def kernels(tensor: Tensor) -> list[str]:
    """The names of the kernels of an expression that multiply, with what becomes of them."""
    return [
        line
        for line in tensor.inspect("fusion").splitlines()
        if "matmul" in line and "->" not in line and line[0] != " "
    ]


def is_one_kernel(tensor: Tensor) -> bool:
    (line,) = kernels(tensor)
    return "stay in registers" in line


@settings(max_examples=examples(8, 15), deadline=None)
@given(
    st.integers(0, 40),
    st.integers(0, 300),
    st.integers(0, 70),
    st.sampled_from(list(PRECISION)),
    st.booleans(),
    st.sampled_from(((), (3,), (2, 3))),
)
def test_gated_products_of_constants(
    m: int, k: int, n: int, dtype: torch.dtype, turned: bool, batch: tuple[int, ...]
) -> None:
    x = drawn(*batch, m, k, dtype=dtype, seed=m)
    weights = [drawn(k, n, dtype=dtype, seed=seed) for seed in (k, n + 1000)]
    marked = [op.constant(w.T.contiguous()).T if turned else op.constant(w) for w in weights]
    check(gated(x, *marked).torch(), x, *weights)


@settings(max_examples=examples(5, 10), deadline=None)
@given(st.integers(1, 14), st.integers(2, 40), st.integers(9, 40), st.booleans(), st.integers(0, 1 << 20))
def test_the_interpreter_agrees(m: int, k: int, n: int, pairs: bool, seed: int) -> None:
    dtype = torch.bfloat16 if pairs else torch.float32
    x = drawn(m, k, dtype=dtype, seed=seed)
    weights = [drawn(k, n, dtype=dtype, seed=seed + add) for add in (1, 2)]
    result = gated(x, *map(op.constant, weights))
    assert is_one_kernel(result)
    check(interpreted(result, seed), x, *weights)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    some(product((1, 2, 5, 8, 12, 13, 33, 150), (torch.float32, torch.bfloat16)), lambda case: case[0]),
)
def test_any_number_of_rows(rows: int, dtype: torch.dtype) -> None:
    x, weights = drawn(rows, 700, dtype=dtype), [drawn(700, 90, dtype=dtype, seed=seed) for seed in (1, 2)]
    result = gated(x, *map(op.constant, weights))
    assert is_one_kernel(result)
    assert f"panels of {detect().vector_bits // 32} columns" in result.inspect("schedule")
    check(result.torch(), x, *weights)


def _biased(x: Tensor, gate: ArrayLike, up: ArrayLike) -> Tensor:
    return op.mul(op.gelu(op.matmul(x, gate) + 0.5), op.matmul(x, up) * 2.0 + 1.0)


def _other_order(x: Tensor, gate: ArrayLike, up: ArrayLike) -> Tensor:
    return op.mul(op.matmul(x, up), op.silu(op.matmul(x, gate)))


def _sum(x: Tensor, gate: ArrayLike, up: ArrayLike) -> Tensor:
    return op.sub(op.matmul(x, gate), op.matmul(x, up))


def _with_residual(x: Tensor, gate: ArrayLike, up: ArrayLike) -> Tensor:
    return op.add(gated(x, gate, up), op.sum(x, axis=-1, keepdims=True))


@pytest.mark.parametrize("form", [_biased, _other_order, _sum, _with_residual])
def test_whatever_maps_they_meet_in(form: Callable[[Tensor, object, object], Tensor]) -> None:
    x, gate, up = op.tensor(drawn(21, 64)), drawn(64, 50, seed=1), drawn(64, 50, seed=2)
    result = form(x, op.constant(gate), op.constant(up))
    assert is_one_kernel(result)
    alone = form(x, gate, up)
    torch.testing.assert_close(result.torch(), alone.torch(), rtol=1e-4, atol=1e-3)


def test_a_product_that_is_needed_elsewhere_is_a_kernel_of_its_own() -> None:
    x, gate, up = op.tensor(drawn(9, 64)), op.constant(drawn(64, 50, seed=1)), op.constant(drawn(64, 50, seed=2))
    raised = op.matmul(x, up)
    both = op.stack([op.silu(op.matmul(x, gate)) * raised, raised])
    assert len(kernels(both)) == 2
    torch.testing.assert_close(both.torch()[1], x.torch() @ up.torch(), rtol=1e-4, atol=1e-4)


def test_products_of_different_operands_are_kernels_of_their_own() -> None:
    x, y = drawn(9, 64), drawn(9, 64, seed=3)
    gate, up = op.constant(drawn(64, 50, seed=1)), op.constant(drawn(64, 50, seed=2))
    assert len(kernels(op.matmul(x, gate) * op.matmul(y, up))) == 2


def test_pinned_products_are_kernels_of_their_own() -> None:
    x, gate, up = op.tensor(drawn(9, 64)), op.constant(drawn(64, 50, seed=1)), op.constant(drawn(64, 50, seed=2))
    assert len(kernels(op.silu(op.matmul(x, gate).pin(unroll=2)) * op.matmul(x, up))) == 2


def test_operands_that_are_no_constants_run_apart() -> None:
    x, gate, up = drawn(9, 64), drawn(64, 50, seed=1), drawn(64, 50, seed=2)
    for weights in ((gate, up), (op.constant(gate), up), (gate, op.constant(up))):
        result = gated(x, *weights)
        assert not is_one_kernel(result)
        expected = [w if isinstance(w, torch.Tensor) else w.torch() for w in weights]
        check(result.torch(), x, *expected)


def test_a_depth_that_no_register_tile_sums_up_runs_apart() -> None:
    x, gate, up = drawn(2, 16_500), drawn(16_500, 20, seed=1), drawn(16_500, 20, seed=2)
    result = gated(x, op.constant(gate), op.constant(up))
    (line,) = kernels(result)
    assert line.endswith("mul; run as kernels of their own for these extents")
    check(result.torch(), x, gate, up)


def test_what_was_changed_in_place_is_packed_again() -> None:
    x, gate, up = drawn(4, 64), drawn(64, 96, seed=1), drawn(64, 96, seed=2)
    weights = op.constant(gate), op.constant(up)
    check(gated(x, *weights).torch(), x, gate, up)
    pending = gated(x, *weights)
    up.mul_(-2)
    check(pending.torch(), x, gate, up)
    gate[3, 5] = 100.0
    check(gated(x, *weights).torch(), x, gate, up)


@pytest.mark.parametrize("columns", [1, 2, 7, 8])
def test_few_columns_are_made_one_product_after_the_other(columns: int) -> None:
    x, gate, up = drawn(300, 64), drawn(64, columns, seed=1), drawn(64, columns, seed=2)
    result = gated(x, op.constant(gate), op.constant(up))
    assert not is_one_kernel(result)
    check(result.torch(), x, gate, up)


def test_bytes_with_scales() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = (13, 70), (70, 40), (70, 40)
    x, gate, up = (torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8) for shape in shapes)
    bytes_ = op.tensor(x)
    scales = drawn(40, seed=4).abs() / 1000

    def scaled(weights: torch.Tensor) -> Tensor:
        return op.mul(op.cast(op.matmul(bytes_, op.constant(weights)), "fp32"), scales)

    result = op.silu(scaled(gate)) * scaled(up)
    assert is_one_kernel(result)
    sums = [(x.int() @ w.int()).double() * scales.double() for w in (gate, up)]
    torch.testing.assert_close(
        result.torch().double(), torch.nn.functional.silu(sums[0]) * sums[1], rtol=1e-5, atol=1e-6
    )


def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    x, gate, up = drawn(5, 64), drawn(64, 40, seed=1), drawn(64, 40, seed=2)
    x[1, 3], gate[7, 11], up[9, 20] = float("nan"), float("inf"), float("nan")
    found = gated(x, op.constant(gate), op.constant(up)).torch()
    expected = torch.nn.functional.silu(x @ gate) * (x @ up)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


@pytest.mark.parametrize("policy", FIXED)
def test_a_fixed_order_of_sums_is_that_of_each_product_alone(policy: PolicyName) -> None:
    x, gate, up = op.tensor(drawn(33, 700)), op.constant(drawn(700, 50, seed=1)), op.constant(drawn(700, 50, seed=2))
    with numerics.policy(policy):
        together = op.matmul(x, gate) - op.matmul(x, up)
        assert is_one_kernel(together)
        one, other = (op.matmul(x, w).torch() for w in (gate, up))
        assert torch.equal(together.torch(), one - other)


def test_reports_count_both_products() -> None:
    x, gate, up = drawn(64, 128), op.constant(drawn(128, 96, seed=1)), op.constant(drawn(128, 96, seed=2))
    with profile.session() as session:
        gated(x, gate, up).eval()
    (record,) = [record for record in session.records() if "matmul" in record.operator]
    assert record.operator == "matmul+silu+matmul+mul"
    assert record.flops is not None
    assert record.flops >= 2 * 2 * 64 * 128 * 96


def test_less_memory_is_taken_than_by_kernels_of_their_own() -> None:
    x, gate, up = drawn(512, 64), op.constant(drawn(64, 512, seed=1)), op.constant(drawn(64, 512, seed=2))
    with numerics.policy("deterministic"):  # under which no model decides whether they are one kernel
        gated(x, gate, up).eval()
        buffers.reset_peak_memory_stats()
        before = buffers.memory_stats()["peak_allocated_bytes"]  # counts small blocks that lie idle, as later peaks do
        gated(x, gate, up).eval()
    assert buffers.memory_stats()["peak_allocated_bytes"] - before < 2 * 512 * 512 * 4


@pytest.mark.skipif(
    tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4), reason="Triton 3.6's interpreter needs numpy < 2.4"
)
def test_devices_form_one_after_the_other() -> None:
    x, gate, up = drawn(9, 32), drawn(32, 20, seed=1), drawn(32, 20, seed=2)
    result = gated(*[op.tensor(each, device="interpreter") for each in (x, gate, up)])
    assert not is_one_kernel(result)
    check(result.torch(), x, gate, up)
