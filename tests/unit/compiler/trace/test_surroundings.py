"""What a traced function reads beside its operands: taken as it is at each call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy
import pytest
import torch

from tessera import Tensor, op
from tessera.compiler.trace.surroundings import Surroundings

FACTOR = torch.full((2,), 2.0)
X = torch.ones(2)


@op.kernel
def by_global(x: Tensor) -> object:
    return x * FACTOR


def test_a_global_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_global(X).tolist() == [2.0, 2.0]  # type: ignore[arg-type, attr-defined]
    monkeypatch.setitem(globals(), "FACTOR", torch.full((2,), 7.0))
    assert by_global(X).tolist() == [7.0, 7.0]  # type: ignore[arg-type, attr-defined]


def test_a_tensor_around_the_function_written_to_moved_or_bound_anew() -> None:
    weight = torch.ones(2)
    scaled = op.kernel(lambda x: x * weight)
    found = [scaled(X).tolist()[0]]
    weight.add_(1.0)
    found.append(scaled(X).tolist()[0])
    weight.data = torch.full((2,), 3.0)
    found.append(scaled(X).tolist()[0])
    weight = torch.full((2,), 4.0)
    found.append(scaled(X).tolist()[0])
    assert found == [1.0, 2.0, 3.0, 4.0]
    assert len(scaled.compilations()) <= 1


def test_what_torch_computes_from_a_tensor_around_the_function() -> None:
    weight = torch.ones(2)
    shifted = op.kernel(lambda x: x * (weight + 1) + weight.sum().item())
    assert shifted(X).tolist() == [4.0, 4.0]
    weight.mul_(2.0)
    assert shifted(X).tolist() == [7.0, 7.0]


def test_a_number_or_helper_bound_anew() -> None:
    factor = 2.5

    def helper(x: Tensor) -> object:
        return x * factor

    activation: Callable[..., Tensor] = op.relu
    inner = op.kernel(lambda x: activation(helper(x)))
    outer = op.kernel(lambda x: inner(x) + 0.5)
    assert outer(X).tolist() == [3.0, 3.0]
    factor = -3.5
    assert outer(X).tolist() == [0.5, 0.5]
    activation = op.abs
    assert outer(X).tolist() == [4.0, 4.0]


def test_tensors_in_lists_and_dictionaries() -> None:
    weights, named = [torch.full((2,), 2.0)], {"bias": (torch.ones(2),)}
    layered = op.kernel(lambda x: x * weights[0] + named["bias"][0])
    assert layered(X).tolist() == [3.0, 3.0]
    weights[0].add_(1.0)
    assert layered(X).tolist() == [4.0, 4.0]
    weights[0] = torch.full((2,), 5.0)
    named["bias"][0].zero_()
    assert layered(X).tolist() == [5.0, 5.0]


def test_a_default_that_is_a_tensor() -> None:
    bias = torch.ones(2)
    shifted = op.kernel(lambda x, b=bias: x + b)
    assert shifted(X).tolist() == [2.0, 2.0]
    bias.add_(1.0)
    assert shifted(X).tolist() == [3.0, 3.0]


def test_objects_whose_changes_cannot_be_seen() -> None:
    model, array = SimpleNamespace(scale=2.5), numpy.ones(2, dtype=numpy.float32)
    for kernel, expected in ((op.kernel(lambda x: x * model.scale), 2.5), (op.kernel(lambda x: x * (array + 1)), 2.0)):
        assert kernel(X).tolist() == [expected] * 2
    first = op.kernel(lambda x: x * model.scale * array.sum())
    assert first(X).tolist() == [5.0, 5.0]
    model.scale, array[0] = 3.5, 3.0
    assert first(X).tolist() == [14.0, 14.0]


def test_what_a_function_counts_itself_is_no_reason_to_run_it_again() -> None:
    runs: list[int] = []
    calls = 0

    def counting(x: Tensor) -> object:
        nonlocal calls
        calls += 1
        runs.append(1)
        return x + 1.0

    kernel = op.kernel(counting)
    for rows in (2, 3, 2, 3):
        kernel(torch.ones(rows)).eval()  # type: ignore[arg-type, attr-defined]
    kernel(torch.ones(2, 2)).eval()  # type: ignore[arg-type, attr-defined]
    kernel(torch.ones(2)).eval()  # type: ignore[arg-type, attr-defined]
    assert (calls, len(runs)) == (2, 2)


def test_a_parameter_is_followed_once_gradients_are_wanted() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    scaled = op.kernel(lambda x: x * weight)
    with torch.no_grad():
        assert scaled(X).tolist() == [1.0, 1.0]
    torch.autograd.backward(op.sum(scaled(X)).torch())
    assert weight.grad is not None
    assert torch.equal(weight.grad, X)


def test_functions_of_operators_alone_are_settled() -> None:
    def chain(x: Tensor) -> Tensor:
        return op.exp(op.tanh(x) * 2.5)

    assert Surroundings(chain).settled
    assert not Surroundings(by_global).settled
    assert not Surroundings(lambda x: x * X).settled
