"""`@op.kernel`: when the function runs, what is compiled, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError, MissingArgumentError, ShapeMismatchError, TesseraError
from tessera.handle import Tensor


def counted(function: Callable[..., object]) -> tuple[Callable[..., object], list[int]]:
    """The function, and a list that grows with each run of it."""
    runs: list[int] = []

    def run(a: Tensor, b: Tensor) -> object:
        runs.append(1)
        return function(a, b)

    return run, runs


def test_the_function_runs_once_for_all_extents() -> None:
    function, runs = counted(lambda a, b: op.relu(a @ b))
    kernel = op.kernel(function)
    for rows in (2, 3, 50):
        a, b = torch.rand(rows, 4), torch.rand(4, 5)
        torch.testing.assert_close(kernel(a, b).torch(), torch.relu(a @ b))
    assert len(runs) == 1


def test_it_runs_again_for_other_dtypes_ranks_and_extents_of_1() -> None:
    function, runs = counted(lambda a, b: a + b)
    kernel = op.kernel(function)
    for a in (torch.rand(3, 4), torch.rand(3, 4).double(), torch.rand(2, 3, 4), torch.rand(1, 4)):
        torch.testing.assert_close(kernel(a, a).torch(), a + a)
    assert len(runs) == 4


def test_a_function_that_reads_extents_runs_for_each() -> None:
    function, runs = counted(lambda a, b: (a + b) * (1.0 / a.shape[0]))
    kernel = op.kernel(function)
    for rows in (2, 3, 2):
        a = torch.rand(rows, 4)
        torch.testing.assert_close(kernel(a, a).torch(), 2 * a / rows)
    assert len(runs) == 2


def test_a_function_that_gives_extents_to_a_layout_operator_runs_for_each() -> None:
    function, runs = counted(lambda a, b: op.reshape(a + b, (-1, 2)))
    kernel = op.kernel(function)
    for rows in (2, 4, 6):
        a = torch.rand(rows, 3)
        torch.testing.assert_close(kernel(a, a).torch(), (2 * a).reshape(-1, 2))
    assert len(runs) == 3


def test_extents_and_numbers_are_no_reasons_to_compile() -> None:
    scaled = op.kernel(lambda a, s: op.tanh(op.softmax(a * s, axis=-1)))
    for length, scale in ((70, 0.3), (80, 0.4), (90, 3)):
        a = torch.rand(5, length)
        torch.testing.assert_close(scaled(a, float(scale)).torch(), torch.softmax(a * scale, -1).tanh())
    assert len(scaled.compilations()) == 1


def test_growing_lengths_compile_a_handful_of_kernels() -> None:
    shifted = op.kernel(lambda a, b: op.softmax(op.erf(a) * 0.3 + b, axis=-1))
    for length in range(2, 514):
        a, b = torch.rand(5, length), torch.rand(length)
        assert shifted(a, b).torch().shape == (5, length)
    assert len(shifted.compilations()) <= 4


def test_compilations_say_why() -> None:
    # Equal expressions share their kernels in a process: this one occurs in no other test.
    joined = op.kernel(lambda a, b: op.erf(a) - op.tanh(b))
    joined(torch.rand(3, 4), torch.rand(3, 4)).eval()
    joined(torch.rand(3, 4).double(), torch.rand(3, 4).double()).eval()
    first, second = joined.compilations()
    assert first.reason.startswith("first call, with fp32[?x?]")
    assert second.reason.startswith("new dtypes, ranks or strides: fp64[?x?]")
    assert first.kernel == "erf_tanh_sub_0"
    assert str(joined.schedule) in str(second)


def test_torch_numpy_and_tessera_arguments_give_tessera_tensors() -> None:
    added = op.kernel(lambda a, b: a + b)
    a, b = torch.rand(3), torch.rand(3)
    for arguments in ((a, b.numpy()), (op.tensor(a), b), (op.exp(op.log(a)), b), (a.numpy(), op.tensor(b))):
        result = added(*arguments)
        assert isinstance(result, Tensor)
        numpy.testing.assert_allclose(result.numpy(), (a + b).numpy(), rtol=1e-5)


def test_several_results() -> None:
    total, product = op.kernel(lambda a, b: (a + b, a * b))(torch.full((3,), 2.0), torch.full((3,), 5.0))
    assert (total.torch().tolist(), product.torch().tolist()) == ([7.0] * 3, [10.0] * 3)


def test_arguments_by_name() -> None:
    kernel = op.kernel(lambda a, b: a - b)
    assert kernel(b=torch.ones(2), a=torch.full((2,), 3.0)).torch().tolist() == [2.0, 2.0]
    with pytest.raises(ArgumentError, match="no free parameter 'c'"):
        kernel(torch.ones(2), c=torch.ones(2))
    with pytest.raises(MissingArgumentError, match="before 'b'"):
        kernel(b=torch.ones(2))


def test_an_operand_left_out_may_only_be_added() -> None:
    product = op.kernel(lambda a, b, c: a @ b + c)
    a = torch.rand(3, 3)
    torch.testing.assert_close(product(a, a).torch(), a @ a)
    torch.testing.assert_close(product(a, a, a).torch(), a @ a + a)
    scaled = op.kernel(lambda a, b: a * b)
    with pytest.raises(MissingArgumentError, match="'b'"):
        scaled(a)


def test_one_operand_too_many() -> None:
    with pytest.raises(ArgumentError, match="takes 1 operands, not 2"):
        op.kernel(lambda a: a)(torch.ones(2), torch.ones(2))


def test_control_flow_on_values_is_refused() -> None:
    def branching(a: Tensor) -> Tensor:
        return a if op.sum(a) > 0 else -a

    with pytest.raises(TesseraError) as raised:
        op.kernel(branching)(torch.ones(3))
    assert raised.value.hints


def test_what_is_no_tensor_cannot_be_returned() -> None:
    with pytest.raises(ArgumentError, match="returned a str"):
        op.kernel(lambda a: "a")(torch.ones(3))


def test_shapes_that_do_not_fit_are_refused_at_each_call() -> None:
    product = op.kernel(lambda a, b: a @ b)
    product(torch.ones(2, 3), torch.ones(3, 4)).eval()
    with pytest.raises(ShapeMismatchError, match=r"\(2, 5\).*\(3, 4\)"):
        product(torch.ones(2, 5), torch.ones(3, 4))


def test_inspection_needs_a_call_first() -> None:
    doubled = op.kernel(lambda a: a * 2)
    with pytest.raises(MissingArgumentError, match="not been called"):
        doubled.inspect("graph")
    doubled(torch.ones(3, 4))
    with pytest.raises(ArgumentError, match="assembler"):
        doubled.inspect("assembler")
    for level, text in (
        ("graph", "graph.mul"),
        ("schedule", "nontemporal"),
        ("tile", "tile.store"),
        ("target", "define"),
    ):
        assert text in doubled.inspect(level)
