"""Reductions of rows and of columns of one matrix, in one walk over its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tessera
from tessera import graph, op

Program = Callable[..., Sequence[Any]]


def norm_gradient(m: Any, g: Any, x: Any, mean: Any, scale: Any, weight: Any) -> Sequence[Any]:
    """The gradients of a layer norm, of what it saved: of its input, weight and bias. `m` has the sum."""
    normal = (x - mean) * scale
    h = g * weight
    along = (
        h - m.sum(h, (1,), keepdims=True) / x.shape[1] - normal * m.sum(h * normal, (1,), keepdims=True) / x.shape[1]
    )
    return along * scale, m.sum(g * normal, (0,)), m.sum(g, (0,))


class Torch:
    """The reductions of torch, under the names of ours."""

    @staticmethod
    def sum(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool = False) -> torch.Tensor:
        return x.sum(axes, keepdim=keepdims)

    @staticmethod
    def mean(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool = False) -> torch.Tensor:
        return x.mean(axes, keepdim=keepdims)

    @staticmethod
    def max(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool = False) -> torch.Tensor:
        return x.amax(axes, keepdim=keepdims)


def operands(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(rows * 1000 + columns)
    shapes = [(rows, columns), (rows, columns), (rows, 1), (rows, 1), (columns,)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def kernels_of(results: Sequence[Any]) -> list[str]:
    return [kernel.name for kernel in graph.explain(lambda: tessera.eval(*results)).kernels]


def check(program: Program, tensors: Sequence[torch.Tensor], tolerance: float = 3e-6) -> None:
    found = program(op, *[op.tensor(each) for each in tensors])
    tessera.eval(*found)
    for got, exact in zip(found, program(Torch, *[each.double() for each in tensors]), strict=True):
        assert tuple(got.shape) == tuple(exact.shape)
        largest = float(exact.abs().max()) if exact.numel() else 0.0
        torch.testing.assert_close(got.torch().double(), exact, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (1, 7), (2, 1), (3, 5), (97, 33), (2100, 65), (40, 2000)])
def test_gradients_of_a_norm_are_right(rows: int, columns: int) -> None:
    check(norm_gradient, operands(rows, columns))


def test_narrow_floats_are_summed_in_wide_ones() -> None:
    check(norm_gradient, operands(300, 48, torch.bfloat16), 2e-2)


def test_rows_are_walked_once() -> None:
    found = kernels_of(norm_gradient(op, *[op.tensor(each) for each in operands(256, 48)]))
    walks = [name for name in found if name.endswith("_parts")]
    assert len(walks) == 1
    assert [name for name in found if name.endswith("_joined")] == [walks[0].replace("_parts", "_joined")]
    assert len(found) == 2


def test_few_long_rows_are_two_kernels_which_workers_can_share() -> None:
    found = kernels_of(norm_gradient(op, *[op.tensor(each) for each in operands(8, 20000)]))
    assert not [name for name in found if name.endswith("_parts")]


def test_what_lies_otherwise_is_right() -> None:
    tensors = operands(130, 66)
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda each: each.t().contiguous().t(),
        lambda each: each.repeat(1, 2)[:, ::2],
    ]
    for lay in ways:
        check(norm_gradient, [lay(each) if each.shape == (130, 66) else each for each in tensors])
    batched = operands(120, 40)
    check(
        lambda m, g, x: (x - m.mean(x, (2,), keepdims=True), m.sum(g * x, (0, 1))),
        [each.reshape(6, 20, 40) for each in batched[:2]],
    )


def test_other_reductions_and_what_is_made_of_columns() -> None:
    def program(m: Any, x: Any, bias: Any) -> Sequence[Any]:
        above = x - m.max(x, (1,), keepdims=True)
        return above, m.max(x, (0,)) * bias, m.mean(above * above, (0,)) + m.sum(x, (0,)), m.sum(x, (1,))

    x, bias = torch.randn(150, 37), torch.randn(37)
    check(program, [x, bias])
    x[3, 4] = float("nan")
    found = program(op, op.tensor(x), op.tensor(bias))
    tessera.eval(*found)
    assert found[1].torch().isnan().nonzero().tolist() == [[4]]


def test_columns_that_are_reduced_twice_are_walked_apart() -> None:
    """The position of a maximum, or a sum of exponentials, needs the maximum of all rows first."""
    x = torch.randn(70, 9)
    for reduce, exact in ((op.argmax, torch.argmax), (op.logsumexp, torch.logsumexp)):
        rows, columns = op.sum(op.tensor(x), 1), reduce(op.tensor(x), 0)
        tessera.eval(rows, columns)
        torch.testing.assert_close(rows.torch(), x.sum(1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(columns.torch(), exact(x, 0), rtol=1e-5, atol=1e-5)


def test_one_row_that_is_repeated() -> None:
    """Nothing that is read says how many rows there are, by which a mean divides."""
    check(
        lambda m, x: (x - m.max(x, (1,), keepdims=True), m.mean(x, (0,)), m.max(x, (0,))),
        [torch.randn(1, 33).expand(70, 33)],
    )


def test_a_pinned_schedule_is_that_of_rows() -> None:
    x = torch.randn(100, 64)
    rows = op.sum(op.tensor(x), (1,)).pin(tile=(1, 16))
    columns = op.sum(op.tensor(x), (0,))
    tessera.eval(rows, columns)
    torch.testing.assert_close(rows.torch(), x.sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(columns.torch(), x.sum(0), rtol=1e-5, atol=1e-5)


def test_gpus_reduce_rows_and_columns_apart() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    x = torch.randn(9, 20)
    weights = op.softmax(op.tensor(x, device="interpreter"))
    found = op.sum(weights, axis=0)
    tessera.eval(weights, found)
    torch.testing.assert_close(found.torch(), x.softmax(1).sum(0))
