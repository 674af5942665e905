"""`Tensor`: how values get out, what Python and other libraries may do with it, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy
import pytest
import torch

from tessera import op
from tessera.compiler import entry
from tessera.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    InPlaceError,
    ShapeMismatchError,
    TesseraError,
    TorchFunctionError,
    ValueControlFlowError,
)
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Placeholder


def test_nothing_runs_until_values_are_asked_for() -> None:
    y = op.exp(torch.zeros(2, 3))
    assert y.is_pending
    assert (y.shape, y.ndim, y.size, len(y), y.strides, y.dtype.name) == ((2, 3), 2, 6, 2, (3, 1), "fp32")
    assert y.device == torch.device("cpu")
    assert y.is_pending
    assert y.eval() is y
    assert not y.is_pending


def test_values_leave_without_a_copy_but_by_dlpack() -> None:
    y = (op.tensor(torch.ones(2, 3)) + 1).eval()
    assert y.torch().data_ptr() == y.torch().data_ptr() == y.leaves[0].address
    assert y.numpy().ctypes.data == numpy.asarray(y).ctypes.data == y.leaves[0].address
    assert torch.utils.dlpack.from_dlpack(y).tolist() == [[2.0] * 3] * 2
    assert numpy.from_dlpack(y).shape == (2, 3)
    assert y.__dlpack_device__() == (1, 0)


def test_memory_lives_as_long_as_what_was_exported() -> None:
    exported = (op.tensor(torch.ones(1000)) + 1).torch()
    junk = [op.tensor(torch.zeros(1000)) + 0.5 for _ in range(10)]
    for tensor in junk:
        tensor.eval()
    assert exported.tolist() == [2.0] * 1000


def test_numpy_conversions() -> None:
    y = op.tensor([1.5, 2.5])
    assert numpy.asarray(y, dtype=numpy.float64).dtype == numpy.float64
    copied = numpy.array(y)
    copied[0] = 9
    assert y.tolist() == [1.5, 2.5]
    with pytest.raises(DTypeError, match="bf16"):
        y.to("bf16").numpy()


def test_item_needs_one_element() -> None:
    assert op.tensor([[3.5]]).item() == 3.5
    assert (op.tensor([1, 2]) + 1).sum().item() == 5
    for tensor in (op.tensor([1.0, 2.0]), op.tensor((0,))):
        with pytest.raises(ArgumentError, match=r"item\(\)"):
            tensor.item()


def test_empty_tensors() -> None:
    y = op.tensor(torch.empty(0, 3)) + 1
    assert y.torch().shape == (0, 3)
    assert y.tolist() == []
    assert (y @ torch.ones(3, 2)).torch().shape == (0, 2)


def test_to_another_dtype_or_device() -> None:
    x = op.tensor([1.0])
    assert x.to(torch.float64).dtype.name == "fp64"
    assert x.to("cpu") is x
    with pytest.raises(DeviceError):
        x.to("cuda:0")
    with pytest.raises(DTypeError):
        x.to("fp12")


OPERATORS: list[Callable[[object, object], object]] = [
    lambda a, b: a + b,  # type: ignore[operator]
    lambda a, b: a - b,  # type: ignore[operator]
    lambda a, b: a * b,  # type: ignore[operator]
    lambda a, b: a / b,  # type: ignore[operator]
    lambda a, b: a**b,  # type: ignore[operator]
    lambda a, b: a @ b,  # type: ignore[operator]
    lambda a, b: a < b,  # type: ignore[operator]
    lambda a, b: a <= b,  # type: ignore[operator]
    lambda a, b: a > b,  # type: ignore[operator]
    lambda a, b: a >= b,  # type: ignore[operator]
    lambda a, b: a == b,
    lambda a, b: a != b,
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_with_tensors_of_other_libraries_on_either_side(operator: Callable[[object, object], object]) -> None:
    a, b = torch.rand(3, 3) + 0.5, torch.rand(3, 3) + 0.5
    expected = operator(a, b)
    for pair in (
        (op.tensor(a), op.tensor(b)),
        (op.tensor(a), b),
        (a, op.tensor(b)),
        (op.tensor(a), b.numpy()),
        (a.numpy(), op.tensor(b)),
    ):
        result = operator(*pair)
        assert isinstance(result, Tensor), pair
        torch.testing.assert_close(result.torch(), expected)


@pytest.mark.parametrize("operator", [*OPERATORS[:5], *OPERATORS[6:]])
def test_operators_with_numbers_on_either_side(operator: Callable[[object, object], object]) -> None:
    a = torch.rand(3, 3) + 0.5
    for number in (2, 0.25, 3.7, 1):
        for ours, theirs in (((op.tensor(a), number), (a, number)), ((number, op.tensor(a)), (number, a))):
            result = operator(*ours)
            assert isinstance(result, Tensor)
            torch.testing.assert_close(result.torch(), operator(*theirs))


def test_conditions_join_with_and_or_not() -> None:
    x = op.tensor([1.0, 2.0, 3.0])
    assert ((x > 1) & (x < 3)).tolist() == [False, True, False]
    assert ((x < 2) | ~(x < 3)).tolist() == [True, False, True]
    assert ((x < 2) ^ (x < 3)).tolist() == [False, True, False]


def test_of_integers_they_join_bits() -> None:
    x, y = op.tensor([1, 2, -7]), torch.tensor([3, 4, 5])
    for ours, theirs in ((x & y, [1, 0, 1]), (x | y, [3, 6, -3]), (x ^ y, [2, 6, -4]), (~x, [-2, -3, 6])):
        assert ours.tolist() == theirs
        assert ours.dtype == torch.int64
    assert (x << 2).tolist() == [4, 8, -28]
    assert (x >> 1).tolist() == [0, 1, -4]
    with pytest.raises(DTypeError):
        op.tensor([1.0]) & op.tensor([3, 4])


def test_what_is_no_tensor_is_a_plain_type_error() -> None:
    x = op.tensor([1.0])
    for other in ("text", None, object(), [1.0], {}):
        with pytest.raises(TypeError):
            x + other
        with pytest.raises(TypeError):
            other @ x
        assert (x == other) is False


def test_python_numbers_of_a_pending_tensor_are_computed() -> None:
    x = op.tensor([2.0])
    assert x + 1 > 2
    assert not x + 1 > 3
    assert float(x + 1) == 3.0
    assert int(x * 2) == 4
    assert complex(x) == 2.0
    assert f"{x * 2:.2f}" == "4.00"
    assert "abcdef"[op.tensor(1) + 1] == "c"
    assert bool((x > 1).eval())
    with pytest.raises(ArgumentError):
        bool(op.tensor([1.0, 2.0]))
    with pytest.raises(TypeError):
        "abc"[x]


def test_inside_a_kernel_they_say_what_to_do() -> None:
    asked: dict[str, Callable[[Tensor], object]] = {
        "bool()": bool,
        "float()": lambda x: float(x + 1),
        "int()": int,
        "a format": lambda x: f"{x:.2f}",
    }
    for question, ask in asked.items():

        @op.kernel
        def asking(x: Tensor, ask: Callable[[Tensor], object] = ask) -> Tensor:
            ask(x)
            return x

        with pytest.raises(ValueControlFlowError) as caught:
            asking(torch.ones(1))  # type: ignore[arg-type]
        assert question in caught.value.message
        assert any("op.where" in hint for hint in caught.value.hints)


def test_in_place_operators_are_refused() -> None:
    x = op.tensor([1.0])
    with pytest.raises(InPlaceError, match="immutable"):
        x += 1
    with pytest.raises(InPlaceError):
        x @= x
    with pytest.raises(InPlaceError) as caught:
        x[0] = 3
    assert caught.value.hints


def test_torch_functions_are_refused_with_a_remedy() -> None:
    x = op.tensor([1.0])
    calls: list[Callable[[], object]] = [
        lambda: torch.exp(x),  # type: ignore[arg-type]
        lambda: torch.nn.functional.softmax(x, -1),  # type: ignore[arg-type]
        lambda: torch.cat([x, x]),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(TorchFunctionError) as caught:
            call()
        assert any(".torch()" in hint for hint in caught.value.hints)
        assert caught.value.where is not None
        assert "test_tensor.py" in caught.value.where


def test_repr_of_values_expressions_and_arguments() -> None:
    x = op.tensor([[1.0, 2.0]])
    assert repr(x) == "Tensor([1, 2], fp32,\n[[1., 2.]])"
    y = op.gelu(x @ torch.ones(2, 3)) * 3.7
    assert repr(y) == "Tensor([1, 3], fp32, pending: mul(gelu(matmul(a, b), approximate=none), c))"
    assert y.is_pending
    argument = Tensor((x.structure, (Placeholder(x.structure),)))
    assert "argument of a traced function" in repr(argument)
    large = op.tensor(torch.zeros(2, 1024, 1024))
    assert repr(large) == "Tensor([2, 1024, 1024], fp32, 2097152 values)"
    assert repr(op.tensor(torch.empty(0, 2))).startswith("Tensor([0, 2], fp32")
    assert "True" in repr(op.tensor([True]))


def test_printing_computes_and_repr_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([-1.0, 2.0])
    y = op.relu(x)
    assert [repr(y) for _ in range(2)] == ["Tensor([2], fp32, pending: relu(a))"] * 2
    print(y)
    assert capsys.readouterr().out == "Tensor([2], fp32,\n[0., 2.])\n"
    assert f"{op.relu(x)}" == str(op.relu(x)) == repr(y)
    large = op.tensor(torch.zeros(2, 1024, 1024)) + 1.0
    assert str(large) == "Tensor([2, 1024, 1024], fp32, 2097152 values)"
    assert not large.is_pending


def test_printing_inside_a_traced_function_shows_the_expression(capsys: pytest.CaptureFixture[str]) -> None:
    @op.kernel
    def doubled(x: Tensor) -> Tensor:
        y = op.exp(x)
        print(x, y)
        return y

    assert doubled(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert "argument of a traced function" in printed
    assert "pending: exp(a)" in printed


def test_repr_of_a_huge_expression_is_short() -> None:
    x = op.tensor([1.0])
    for _ in range(3000):
        x = x + x * 0.5
    assert len(repr(x)) < 200
    assert x.is_pending


def test_values_of_a_traced_argument_are_refused() -> None:
    structure = op.tensor((2, 2)).structure
    argument = Tensor((structure, (Placeholder(structure),)))
    for ask in (argument.torch, argument.numpy, argument.tolist, (argument[0, 0]).__bool__):
        with pytest.raises(ValueControlFlowError):
            ask()


def test_iteration_hash_copies_and_pickles() -> None:
    x = op.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert [row.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(TypeError):
        len(op.tensor(1.0))
    with pytest.raises(TypeError):
        iter(op.tensor(1.0))
    assert len({x, x, x + 1}) == 2
    pending = x + 1
    assert pickle.loads(pickle.dumps(pending)).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert copy.copy(pending).leaves == copy.deepcopy(pending).leaves == pending.leaves


def test_inspect_asks_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "inspect", lambda tensor, level: f"{level} of {tensor.shape}")
    assert op.tensor([1.0]).inspect("tile") == "tile of (1,)"


def test_eval_into_given_memory() -> None:
    out = torch.empty(2, 3)
    y = (op.tensor(torch.ones(2, 3)) * 3.5).eval(out)
    assert out.tolist() == y.tolist() == [[3.5] * 3] * 2
    out.zero_()
    with pytest.raises(TesseraError):
        (y + 1).eval()
    with pytest.raises(ShapeMismatchError):
        (op.tensor(torch.ones(2)) + 1).eval(torch.empty(3))


def test_a_torch_tensor_is_not_updated_in_place() -> None:
    x = kept = torch.ones(2)
    y = op.tensor([1.0, 2.0])
    with pytest.raises(ArgumentError, match="add_: a torch tensor is not updated in place"):
        x += y  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="copy_"):
        x.copy_(y)  # type: ignore[arg-type]
    assert x is kept


def test_only_operators_that_exist_are_named_instead_of_torchs() -> None:
    with pytest.raises(TorchFunctionError) as caught:
        torch.relu(op.tensor([1.0]))  # type: ignore[arg-type]
    assert caught.value.hints == ("pass tensor.torch()", "or use op.relu")
    with pytest.raises(TorchFunctionError) as caught:
        torch.logcumsumexp(op.tensor([1.0]), 0)  # type: ignore[arg-type]
    assert caught.value.hints == ("pass tensor.torch()",)


def test_rows_of_a_repr_are_aligned() -> None:
    rows = repr(op.tensor(torch.arange(8.0).reshape(2, 2, 2))).splitlines()
    assert rows == ["Tensor([2, 2, 2], fp32,", "[[[0., 1.],", "  [2., 3.]],", "", " [[4., 5.],", "  [6., 7.]]])"]


def test_one_element_is_formatted_as_a_number() -> None:
    assert f"{op.tensor([2.0]) / 3:.3f}" == "0.667"
    assert f"{op.tensor([2.0])}" == "Tensor([1], fp32,\n[2.])"
    with pytest.raises(ArgumentError, match=r"shape \(2,\)"):
        f"{op.tensor([2.0, 3.0]):.3f}"


def test_the_truth_of_several_elements_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"bool\(\) of a tensor of shape \(2,\)"):
        bool(op.tensor([True, False]))


def test_an_unknown_device_is_refused() -> None:
    for device in ("foo", "", 3):
        with pytest.raises(DeviceError):
            op.tensor((2, 2), device=device)
