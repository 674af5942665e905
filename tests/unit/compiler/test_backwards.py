"""What is walked backwards: kernels turn vectors around; and what kernels that only copy are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera
from tessera import Tensor, op
from tessera.errors import DTypeError
from tessera.ops.algebra import call
from tests.property.checking import evaluated
from tests.whole import examples

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool)


@settings(max_examples=examples(13, 25))
@given(st.integers(1, 3), st.integers(1, 140), st.sampled_from(((0,), (1,), (0, 1))), st.sampled_from(DTYPES))
def test_flipped_along_any_axes(rows: int, columns: int, axes: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(-3, 3, (rows, columns + 2), generator=torch.Generator().manual_seed(columns)).to(dtype)[:, 1:-1]
    assert torch.equal(evaluated(op.flip(op.tensor(x), axes)), x.flip(axes))


def test_flipped_operands_of_maps_and_reductions() -> None:
    x, y = torch.randn(9, 77), torch.randn(9, 77)
    x[2, 5] = float("nan")
    result = evaluated(op.flip(op.tensor(x), 1) + y)
    torch.testing.assert_close(result, x.flip(1) + y, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(evaluated(op.softmax(op.flip(op.tensor(y), 1))), y.flip(1).softmax(-1))
    assert torch.equal(evaluated(op.argmax(op.flip(op.tensor(y), 1), axis=1)), y.flip(1).argmax(1))
    assert torch.equal(evaluated(op.flip(op.tensor(y.T), 0) + y.T), y.T.flip(0) + y.T)


def test_backwards_on_the_gpu_interpreter_too() -> None:
    x = torch.randn(5, 40)
    assert torch.equal(op.flip(op.tensor(x, device="interpreter"), 1).torch(), x.flip(1))


def test_copies_are_called_so_in_profiles() -> None:
    x = torch.randn(6, 7)
    op.flip(op.tensor(x), 1).eval()
    with tessera.profile.session() as session:
        op.flip(op.tensor(x), 1).eval()
        op.tensor(x).to("bf16").eval()
    assert [row.operator for row in session.records() if row.kind == "kernel"] == ["copy", "cast"]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("one_hot", lambda: op.one_hot(torch.randn(3), 4)),
        ("embedding", lambda: op.embedding(torch.randn(3, 4), torch.randn(3))),
        ("index_select", lambda: op.index_select(torch.randn(3, 4), 0, torch.randn(3))),
    ],
)
def test_errors_name_the_operator_that_was_called(name: str, make: object) -> None:
    assert callable(make)
    with pytest.raises(DTypeError, match=name):
        make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("made", [op.tensor, op.constant])
@pytest.mark.parametrize("dims", [(0,), (1,), (2, 3)])
def test_weights_of_convolutions(
    dtype: torch.dtype, made: Callable[[torch.Tensor], Tensor], dims: tuple[int, ...]
) -> None:
    x, w = torch.randn(1, 6, 7, 3).to(dtype), torch.randn(5, 3, 3, 2).to(dtype)
    found = call("conv2d", op.tensor(x), turned(made(w), dims)).torch().double()
    expected = torch.nn.functional.conv2d(x.double().permute(0, 3, 1, 2), w.double().flip(dims)).permute(0, 2, 3, 1)
    assert float((found - expected).abs().max()) <= 4 * torch.finfo(dtype).eps * float(expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_constants_of_products(dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    a, b = torch.randn(5, 8).to(dtype), torch.randn(8, 9).to(dtype)
    found = op.matmul(a, turned(op.constant(b), dims)).torch().double()
    expected = a.double() @ b.double().flip(dims)
    assert float((found - expected).abs().max()) <= 4 * torch.finfo(dtype).eps * float(expected.abs().max())


def turned(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The same memory, walked backwards along some dimensions."""
    starts = tuple(extent - 1 if dim in dims else 0 for dim, extent in enumerate(x.shape))
    steps = tuple(-1 if dim in dims else 1 for dim in range(len(x.shape)))
    found: Tensor = call("slice", x, starts=starts, sizes=tuple(x.shape), steps=steps)
    return found
