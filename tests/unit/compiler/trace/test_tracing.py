"""`@op.kernel`: when the function runs, what is compiled, and what is refused."""

# mypy: disable-error-code="arg-type, attr-defined, call-arg"
# Kernels are called here as no type checker would let them be: with torch tensors, without trailing operands.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tessera import op
from tessera.compiler.trace.tracing import TracedFunction
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
    assert second.reason.startswith("new dtypes: fp64[?x?]")
    assert first.kernel == "erf_tanh_sub_0"
    assert str(joined.schedule) in str(second)


def reasons(kernel: TracedFunction) -> list[str]:
    """Why each kernel of a function was compiled."""
    return [compilation.reason for compilation in kernel.compilations()]


def test_compilations_name_what_differs() -> None:
    by_extent = op.kernel(lambda x: op.erf(x) * 2.5 if x.shape[0] > 3 else op.erf(x) * 2.5 + 0.25)
    for rows in (2, 5):
        by_extent(torch.rand(rows)).eval()
    assert reasons(by_extent)[1] == "the function reads extents, and these give another expression: [5]"
    cubed = op.kernel(lambda x: op.tanh(op.erf(x)) * 3.5)
    for x in (torch.rand(3, 4), torch.rand(3), torch.rand(1, 4), torch.rand(4, 3).T, torch.rand(3, 4).bfloat16()):
        cubed(x)
    assert [reason.partition(":")[0] for reason in cubed.forms.values()][1:] == [
        "new ranks",
        "new extents of 1",
        "new strides",
        "new dtypes",
    ]


def test_several_results_of_a_first_call_have_its_reason() -> None:
    for result in (pair := op.kernel(lambda x: (op.erf(x) * 4.5, op.tanh(x) - op.erf(x) * 5.5)))(torch.rand(3)):
        result.eval()
    assert [reason.partition(",")[0] for reason in reasons(pair)] == ["first call", "first call"]


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
    with pytest.raises(MissingArgumentError, match=r"without 'a'.*before 'b'"):
        kernel(b=torch.ones(2))


def test_a_default_may_stand_before_a_given_argument() -> None:
    kernel = op.kernel(lambda x, y=2.5, flag=True: x * 3.0 if flag else x + y)
    x = torch.ones(2)
    assert kernel(x).tolist() == [3.0, 3.0]
    assert kernel(x, flag=False).tolist() == [3.5, 3.5]
    assert kernel(x, 1.0, False).tolist() == [2.0, 2.0]
    assert kernel(x, flag=True).tolist() == [3.0, 3.0]


def test_flags_none_and_text_may_be_branched_on() -> None:
    @op.kernel
    def dense(x: Tensor, bias: Tensor | None, activation: str) -> object:
        shifted = x if bias is None else x + bias
        return op.relu(shifted) if activation == "relu" else op.tanh(shifted)

    x = torch.tensor([-1.0, 2.0])
    assert dense(x, None, "relu").tolist() == [0.0, 2.0]
    assert dense(x, x, "relu").tolist() == [0.0, 4.0]
    torch.testing.assert_close(dense(x, None, "tanh").torch(), x.tanh())


def test_parameters_by_name_only() -> None:
    @op.kernel
    def scaled(x: Tensor, *, by: float, shift: Tensor) -> object:
        return x * by + shift

    x = torch.ones(2)
    assert scaled(x, by=3.0, shift=x).tolist() == [4.0, 4.0]
    assert scaled(x, shift=x, by=0.25).tolist() == [1.25, 1.25]
    with pytest.raises(MissingArgumentError, match="'shift'"):
        scaled(x, by=3.0)
    with pytest.raises(ArgumentError, match="takes 1 operands, not 3"):
        scaled(x, 3.0, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *tensors: tensors[0], r"takes \*tensors: a kernel has a fixed number"),
        (lambda x, **more: x, r"takes \*\*more"),
        (3, "takes a function, not a int"),
        (Tensor, "of the class Tensor"),
        (staticmethod(lambda x: x), "of a staticmethod"),
    ],
    ids=["args", "kwargs", "number", "class", "staticmethod"],
)
def test_what_cannot_be_traced_is_refused_where_it_is_decorated(function: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        op.kernel(function)
    assert raised.value.hints
    assert "test_tracing.py" in str(raised.value.where)


def test_methods_read_the_object_they_are_called_on() -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = by

        @op.kernel
        def forward(self, x: Tensor) -> object:
            return op.relu(x * self.by) - 8.5  # a kernel that no other test has made variants of

    two, three = Scaled(2.5), Scaled(3.5)
    x = torch.ones(2)
    assert two.forward(x).tolist() == [-6.0, -6.0]
    assert three.forward(x).tolist() == [-5.0, -5.0]
    two.by = 4.5
    assert two.forward(x=x).tolist() == [-4.0, -4.0]
    assert Scaled.forward(two, x).tolist() == [-4.0, -4.0]
    assert len(Scaled.forward.compilations()) == 1


def test_integers_as_arguments_need_no_kernel_of_their_own() -> None:
    scaled = op.kernel(lambda x, s: op.erf(x * s) * 6.5)
    x = torch.rand(5)
    for number in (0.3, 3, 7):
        torch.testing.assert_close(scaled(x, number).torch(), torch.erf(x * number) * 6.5)
    assert len(scaled.compilations()) == 1
    torch.testing.assert_close(scaled(op.tensor(x) + 1.0, 4).torch(), torch.erf((x + 1) * 4) * 6.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_numbers_beside_tensors_of_a_dtype_give_what_torch_gives(dtype: torch.dtype) -> None:
    x = torch.arange(6).to(dtype)
    kernel = op.kernel(lambda x, s: x * s + x)
    for number in (257, 3, 0.1):
        torch.testing.assert_close(kernel(x, number).torch(), x * number + x)


def test_an_integer_that_is_no_factor_stays_an_integer() -> None:
    x = torch.ones(3)
    tripled, number = op.kernel(lambda x, n: (x * n, n + 1))(x, 3)
    assert tripled.tolist() == [3.0] * 3
    assert (str(number.dtype), number.item()) == ("int64", 4)


def test_numbers_are_exact_beside_arrays_of_doubles() -> None:
    values = numpy.ones(3)
    numpy.testing.assert_array_equal(op.kernel(lambda x, s: x * s)(values, 0.1).numpy(), values * 0.1)


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
