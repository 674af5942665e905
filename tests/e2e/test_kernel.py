"""`@op.kernel` as users write it: whole functions, compiled once, right for every argument that comes later."""

# mypy: disable-error-code="arg-type, attr-defined, call-arg, operator"
# Kernels are called here as no type checker would let them be: with torch tensors, without trailing operands.

from __future__ import annotations

import threading

import numpy
import pytest
import torch

import tessera
from tessera import Tensor, op
from tessera.compiler.trace.tracing import TracedFunction
from tessera.errors import InputMutatedError, MissingArgumentError, ValueControlFlowError
from tests.whole import examples

LENGTHS = range(1, 513, examples(4, 1))


@op.kernel
def matmul(A: Tensor, B: Tensor, C: Tensor) -> object:
    return A @ B + C


@op.kernel
def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> object:
    return op.softmax(q @ k.T * scale) @ v


def expected_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(q.double() @ k.double().T * scale, -1) @ v.double()


def test_a_trailing_operand_may_be_absent_or_given() -> None:
    a, b, c = torch.randn(33, 17), torch.randn(17, 40), torch.randn(40)
    torch.testing.assert_close(matmul(a, b).torch(), a @ b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(matmul(a, b, c).torch(), a @ b + c, rtol=1e-5, atol=1e-5)


def test_an_absent_operand_used_otherwise_names_itself_and_the_line_of_the_call() -> None:
    @op.kernel
    def scaled(a: Tensor, factor: Tensor) -> object:
        return a * factor

    with pytest.raises(MissingArgumentError, match="'factor'") as raised:
        scaled(torch.ones(3))
    assert raised.value.where is not None
    assert "test_kernel.py" in raised.value.where


@pytest.mark.parametrize("convert", [lambda t: t, torch.Tensor.numpy, op.tensor], ids=["torch", "numpy", "tessera"])
def test_arguments_of_every_kind_in_one_call(convert: object) -> None:
    assert callable(convert)
    q, k, v = torch.randn(5, 8), torch.randn(7, 8), torch.randn(7, 3)
    result = attention(convert(q), k, convert(v), 0.5)
    assert isinstance(result, Tensor)
    torch.testing.assert_close(result.torch().double(), expected_attention(q, k, v, 0.5), rtol=1e-5, atol=1e-5)


def test_pending_arguments_and_results_of_other_kernels() -> None:
    a = torch.randn(6, 6)
    chained = matmul(matmul(a, a) * 2.0, op.tanh(a), a[0])
    torch.testing.assert_close(chained.torch(), (a @ a * 2) @ a.tanh() + a[0], rtol=1e-4, atol=1e-4)


def test_scalars_are_arguments() -> None:
    @op.kernel
    def line(x: Tensor, slope: float, offset: float) -> object:
        return x * slope + offset

    x = torch.randn(9, 9)
    for slope, offset in ((0.1, 2.5), (7.25, -3.5), (float("inf"), 0.3), (-0.7, float("nan"))):
        torch.testing.assert_close(line(x, slope, offset).torch(), x * slope + offset, equal_nan=True)
    assert len(line.compilations()) == 1


def own_kernels(function: TracedFunction) -> dict[str, list[str]]:
    """What was compiled for a function, by kernel."""
    found: dict[str, list[str]] = {}
    for compilation in function.compilations():
        found.setdefault(compilation.kernel, []).append(str(compilation))
    return found


def test_lengths_that_grow_to_512_of_attention_compile_at_most_4_kernels_for_each_step() -> None:
    @op.kernel
    def attend(q: Tensor, k: Tensor, v: Tensor) -> object:
        return op.softmax(q @ k.T) @ v

    q = torch.randn(4, 16)
    for length in LENGTHS:
        keys = torch.randn(length, 16)
        result = attend(q, keys, keys).torch()
        if length % 37 == 1:
            expected = expected_attention(q, keys, keys, 1.0)
            torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    for compilations in own_kernels(attend).values():
        assert len(compilations) <= 4, "\n".join(compilations)


def test_lengths_that_grow_to_512_of_a_product_compile_at_most_4_kernels() -> None:
    @op.kernel
    def scores(query: Tensor, keys: Tensor, bias: Tensor) -> object:
        return op.relu(query @ keys - bias)

    query, keys, bias = torch.randn(8, 64), torch.randn(64, 512), torch.randn(512)
    for length in LENGTHS:
        result = scores(query, keys[:, :length], bias[:length]).torch()
        if length % 37 == 1:
            expected = torch.relu(query @ keys[:, :length] - bias[:length])
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert len(scores.compilations()) <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_rows_that_grow_to_512_compile_at_most_4_kernels(dtype: torch.dtype) -> None:
    @op.kernel
    def dense(rows: Tensor, weights: Tensor, bias: Tensor) -> object:
        # Equal expressions share their kernels in a process, and this sum with + occurs in the documents.
        return op.gelu(rows @ weights - bias)

    weights, bias = torch.randn(301, 48).to(dtype), torch.randn(48).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for count in LENGTHS:
        rows = torch.randn(count, 301).to(dtype)
        result = dense(rows, weights, bias).torch()
        if count < 40 or count % 37 == 1:
            expected = torch.nn.functional.gelu(rows.double() @ weights.double() - bias.double())
            torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    # One row; few rows; up to a block of them; more.
    assert len(dense.compilations()) <= 4


def test_control_flow_on_values_is_refused_at_the_users_line() -> None:
    @op.kernel
    def branching(x: Tensor) -> object:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(ValueControlFlowError) as raised:
        branching(torch.ones(3))
    assert raised.value.code == "E_VALUE_CONTROL_FLOW"
    assert "test_kernel.py" in str(raised.value.where)
    assert any("op.where" in hint for hint in raised.value.hints)


def test_values_of_arguments_cannot_be_read_while_tracing() -> None:
    @op.kernel
    def reading(x: Tensor) -> object:
        return x * x.sum().item()

    with pytest.raises(ValueControlFlowError):
        reading(torch.ones(3))


def test_control_flow_on_shapes_is_followed() -> None:
    @op.kernel
    def wide_or_tall(x: Tensor) -> object:
        return x.sum(0) if x.shape[0] > x.shape[1] else x.sum(1)

    for shape in ((5, 3), (3, 5), (6, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(wide_or_tall(x).torch(), x.sum(0 if shape[0] > shape[1] else 1))


def test_a_failed_trace_leaves_the_kernel_usable() -> None:
    @op.kernel
    def product(a: Tensor, b: Tensor) -> object:
        return a @ b

    with pytest.raises(tessera.TesseraError):
        product(torch.ones(2, 3), torch.ones(4, 5))
    assert product(torch.ones(2, 3), torch.ones(3, 5)).tolist() == [[3.0] * 5] * 2


def test_the_same_tensor_for_every_operand() -> None:
    x = torch.randn(12, 12)
    torch.testing.assert_close(matmul(x, x, x).torch(), x @ x + x, rtol=1e-4, atol=1e-4)


def test_views_empty_tensors_and_single_elements() -> None:
    base = torch.randn(30, 40)
    for a, b in ((base[::2, 3:20], base[:17, ::3]), (base.T[:5], base[:, :1]), (base[:0], base.T), (base[:1], base.T)):
        torch.testing.assert_close(matmul(a, b).torch(), a @ b, rtol=1e-4, atol=1e-4)
    nothing = matmul(torch.ones(3, 0), torch.ones(0, 4), torch.arange(4.0))
    assert nothing.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3


def test_an_argument_returned_as_it_is() -> None:
    passed = op.kernel(lambda x: (x, x + 1.0))
    x = torch.randn(3)
    first, second = passed(x)
    numpy.testing.assert_array_equal(first.numpy(), x.numpy())
    torch.testing.assert_close(second.torch(), x + 1)


def test_a_kernel_may_use_kernels_and_tensors_around_it() -> None:
    weight = torch.randn(4, 4)

    @op.kernel
    def layer(x: Tensor) -> object:
        return op.relu(matmul(x, weight))

    for rows in (2, 3, 1):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(layer(x).torch(), torch.relu(x @ weight), rtol=1e-5, atol=1e-5)
    weight.add_(1.0)
    x = torch.randn(2, 4)
    torch.testing.assert_close(layer(x).torch(), torch.relu(x @ weight), rtol=1e-5, atol=1e-5)
    pending = layer(x)
    weight.add_(1.0)
    with pytest.raises(InputMutatedError):
        pending.eval()


def test_every_level_can_be_read() -> None:
    @op.kernel
    def dense(x: Tensor, w: Tensor) -> object:
        return op.gelu(x @ w)

    dense(torch.randn(64, 64), torch.randn(64, 64))
    assert "tessera.graph.matmul" in dense.inspect("graph")
    assert 'family = "contraction"' in dense.inspect("schedule")
    assert "tessera.tile.mma_sync" in dense.inspect("tile")
    assert "define" in dense.inspect("target")
    assert f"tile={tuple(dense.schedule.integers('tile'))}".replace(" ", "") in str(dense.schedule).replace(" ", "")
    (compilation,) = dense.compilations()
    assert compilation.schedule == str(dense.schedule)


def test_many_threads_call_one_kernel() -> None:
    @op.kernel
    def shared(x: Tensor, y: Tensor) -> object:
        return op.softmax(x @ y) + 1.0

    wrong: list[str] = []
    barrier = threading.Barrier(6)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        barrier.wait()
        for size in (3, 9, 20, 5):
            x, y = torch.randn(size, 4, generator=generator), torch.randn(4, 6, generator=generator)
            if not torch.allclose(shared(x, y).torch(), torch.softmax(x @ y, -1) + 1, atol=1e-5):
                wrong.append(f"thread {seed}, size {size}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(len(set(compilations)) == len(compilations) for compilations in own_kernels(shared).values())
