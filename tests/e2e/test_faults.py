"""Bad input: a clear error at the user's line, or the result that torch gives. Nothing in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest
import torch

from tessera import Tensor, TesseraError, op, stream, target
from tessera.compiler.device import compilers
from tessera.compiler.device.cpu_planner import CpuPlanner
from tessera.errors import GradDetachedError, InputMutatedError, MemoryLimitError, UnsupportedTargetError
from tessera.lazy.structures import interning

X = torch.ones(3, 4)


def refused(call: Callable[[], object], code: str, *parts: str) -> TesseraError:
    """Asserts that a call raises the error `code`, with `parts` in its message, and says where in this file."""
    with pytest.raises(TesseraError) as raised:
        call()
    error = raised.value
    assert error.code == code
    for part in parts:
        assert part in error.message, error.message
    assert error.where is not None
    assert "test_faults.py" in error.where
    assert str(error).startswith(f"{code}: ")
    return error


WRONG_SHAPES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "matmul": (lambda: op.matmul(X, X), ("(3, 4)", "inner extents 4 and 3")),
    "matmul batches": (lambda: op.matmul(torch.ones(2, 3, 4), torch.ones(5, 4, 3)), ("(2, 3, 4)", "(5, 4, 3)")),
    "operator @": (lambda: op.tensor(X) @ X, ("(3, 4)",)),
    "gemm": (lambda: op.gemm(X, X.T, torch.ones(5)), ("(3, 4)", "(4, 3)", "(5,)")),
    "add": (lambda: op.tensor(X) + torch.ones(5), ("(3, 4)", "(5,)")),
    "where": (lambda: op.where(X > 0, X, torch.ones(7, 4)), ("(3, 4)", "(7, 4)")),
    "layer_norm": (lambda: op.layer_norm(X, torch.ones(3)), ("(3, 4)", "(3,)")),
    "rms_norm": (lambda: op.rms_norm(X, torch.ones(5)), ("(3, 4)", "(5,)")),
    "concat": (lambda: op.concat([X, torch.ones(3, 5)], 0), ("(3, 4)", "(3, 5)")),
    "reshape": (lambda: op.reshape(X, (5, -1)), ("(3, 4)", "(5, -1)")),
    "broadcast_to": (lambda: op.broadcast_to(X, (3, 5)), ("(3, 4)", "(3, 5)")),
}


@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_wrong_shapes_are_refused_at_the_call_with_all_shapes(case: str) -> None:
    call, parts = WRONG_SHAPES[case]
    refused(call, "E_SHAPE_MISMATCH", *parts)


WRONG_DTYPES: dict[str, Callable[[], object]] = {
    "complex": lambda: op.exp(torch.ones(3, dtype=torch.complex64)),
    "uint16": lambda: op.tensor(torch.ones(3, dtype=torch.uint16)),
    "numpy strings": lambda: op.tensor(numpy.array(["a", "b"])),
    "silu of integers": lambda: op.silu(torch.ones(3, dtype=torch.int64)),
    "mean of integers": lambda: op.mean(torch.ones(3, dtype=torch.int64)),
    "negated bool": lambda: op.neg(torch.ones(3, dtype=torch.bool)),
    "condition of floats": lambda: op.where(X, X, X),
    "unknown name": lambda: op.cast(X, "float12"),
    "sparse": lambda: op.exp(torch.eye(3).to_sparse()),
}


@pytest.mark.parametrize("case", WRONG_DTYPES)
def test_wrong_dtypes_are_refused_at_the_call(case: str) -> None:
    assert refused(WRONG_DTYPES[case], "E_DTYPE").hints


WRONG_ARGUMENTS: dict[str, Callable[[], object]] = {
    "axis": lambda: op.sum(X, 2),
    "axis twice": lambda: op.sum(X, (0, -2)),
    "maximum of nothing": lambda: op.max(torch.ones(0, 3), 0),
    "concat of nothing": lambda: op.concat([]),
    "index": lambda: op.tensor(X)[3],
    "step of 0": lambda: op.tensor(X)[::0],
    "no tensor": lambda: op.exp("text"),  # type: ignore[arg-type]
    "ragged list": lambda: op.tensor([[1.0], [2.0, 3.0]]),
    "negative extent": lambda: op.tensor((2, -3)),
    "clamp without bounds": lambda: op.clamp(X),
    "item of many": lambda: op.tensor(X).item(),
    "integer to a negative power": lambda: op.pow(torch.ones(3, dtype=torch.int64), -1),
    "scaling that is no number": lambda: op.gemm(X, X.T, alpha=[]),  # type: ignore[arg-type]
    "scaling that is text": lambda: op.gemm(X, X.T, beta="1"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused_at_the_call(case: str) -> None:
    refused(WRONG_ARGUMENTS[case], "E_ARGUMENT")


def test_other_devices_are_refused() -> None:
    for call in (
        lambda: op.exp(torch.ones(3, device="meta")),
        lambda: op.tensor(X, device="cuda"),
        lambda: op.tensor(X).to("cuda:1"),
        lambda: op.matmul(X, torch.ones(4, 3, device="meta")),
    ):
        assert refused(call, "E_DEVICE").hints


def test_tensors_that_require_grad_are_never_detached_silently() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    shifted = op.kernel(lambda a: a + 1.0)
    for call in (lambda: op.matmul(X, weight), lambda: shifted(weight), lambda: weight + op.exp(X[0])):
        assert call().torch().requires_grad
        assert call().eval().torch().requires_grad
    refusals: tuple[Callable[[], Tensor], ...] = (
        lambda: op.exp(weight).eval(out=torch.empty(4, 4)),
        lambda: op.exp(weight, stream=stream.create()),
        lambda: op.constant(weight),
    )
    for refused_call in refusals:
        with pytest.raises(GradDetachedError) as raised:
            refused_call()
        assert any("detach" in hint for hint in raised.value.hints)
    with torch.no_grad():
        assert op.matmul(X, weight).torch().requires_grad is False
    assert op.matmul(X, weight.detach()).tolist() == [[4.0] * 4] * 3


EMPTY: dict[str, tuple[Callable[[torch.Tensor], Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "exp": (op.exp, torch.exp),
    "sum": (op.sum, torch.sum),
    "sum along nothing": (lambda x: op.sum(x, 0), lambda x: x.sum(0)),
    "mean": (op.mean, torch.mean),
    "prod": (op.prod, torch.prod),
    "maximum along the other axis": (
        lambda x: op.max(x, next(i for i, n in enumerate(x.shape) if n)),
        lambda x: x.amax(next(i for i, n in enumerate(x.shape) if n)),
    ),
    "softmax": (op.softmax, lambda x: x.softmax(-1)),
    "layer_norm": (op.layer_norm, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    "matmul": (lambda x: op.matmul(x, x.T), lambda x: x @ x.T),
    "transposed matmul": (lambda x: op.matmul(x.T, x) + 1.0, lambda x: x.T @ x + 1),
    "concat": (lambda x: op.concat([x, x * 2.0, x]), lambda x: torch.cat([x, x, x])),
    "slice of pending": (lambda x: op.tanh(x)[1:], lambda x: x.tanh()[1:]),
    "broadcast": (lambda x: op.tensor(x) + torch.ones(1, 1), lambda x: x + 1),
}


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("case", EMPTY)
def test_empty_tensors_give_what_torch_gives(case: str, shape: tuple[int, int]) -> None:
    ours, theirs = EMPTY[case]
    x = torch.ones(shape)
    torch.testing.assert_close(ours(x).torch(), theirs(x), equal_nan=True)


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 1.0])


# gelu is not among them: torch's vectorized fp32 code makes NaN of infinity, unlike its fp64 code.
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "relu", "silu", "abs", "softmax", "argmax"]
)
def test_nan_and_infinities_come_out_where_torch_has_them(name: str) -> None:
    functional = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    expected = functional(SPECIAL, -1) if name == "softmax" else functional(SPECIAL)
    torch.testing.assert_close(getattr(op, name)(SPECIAL).torch(), expected, equal_nan=True, rtol=1e-5, atol=1e-38)


def test_nan_decides_comparisons_reductions_and_products_as_in_torch() -> None:
    column = SPECIAL[:, None]
    for ours, theirs in (
        (op.maximum(SPECIAL, column), torch.maximum(SPECIAL, column)),
        (op.minimum(SPECIAL, column), torch.minimum(SPECIAL, column)),
        (op.tensor(SPECIAL) == column, torch.eq(SPECIAL, column)),
        (op.where(op.tensor(column) > 0.0, SPECIAL, column), torch.where(column > 0, SPECIAL, column)),
        (op.matmul(column[:, :1], SPECIAL[None]), column @ SPECIAL[None]),
        (op.max(SPECIAL), SPECIAL.max()),
        (op.sum(SPECIAL[1:3]), SPECIAL[1:3].sum()),
    ):
        torch.testing.assert_close(ours.torch(), theirs, equal_nan=True)


def unusual_arrays() -> dict[str, numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]]:
    """The same 6 x 5 matrix in memory that is not what kernels like best."""
    plain = numpy.arange(30, dtype=numpy.float32).reshape(6, 5)
    unaligned = numpy.zeros(30 * 4 + 1, dtype=numpy.uint8)[1:].view(numpy.float32).reshape(6, 5)
    unaligned[:] = plain
    read_only = plain.copy()
    read_only.flags.writeable = False
    return {
        "plain": plain,
        "fortran": numpy.asfortranarray(plain),
        "reversed": plain[::-1, ::-1].copy()[::-1, ::-1],
        "foreign byte order": plain.astype(">f4"),
        "unaligned": unaligned,
        "read-only": read_only,
        "packed record": numpy.array(list(zip(plain, plain, strict=True)), dtype=[("a", "f4", 5), ("b", "f4", 5)])["b"],
    }


@pytest.mark.parametrize("layout", unusual_arrays())
def test_arrays_of_any_layout_are_read_right(layout: str) -> None:
    array = unusual_arrays()[layout]
    expected = torch.arange(30.0).reshape(6, 5)
    torch.testing.assert_close(op.matmul(array, array.T).torch(), expected @ expected.T)
    torch.testing.assert_close(op.sum(op.tensor(array) * 2.0, 0).torch(), expected.sum(0) * 2)


def test_overlapping_and_repeated_views_are_read_right() -> None:
    windows = torch.arange(20.0).as_strided((8, 5), (2, 1))
    repeated = torch.arange(5.0).expand(8, 5)
    torch.testing.assert_close(op.matmul(windows, repeated.T).torch(), windows @ repeated.T)
    torch.testing.assert_close(op.softmax(op.tensor(repeated) + windows).torch(), torch.softmax(repeated + windows, -1))


def test_a_result_written_over_its_own_input_is_right_or_refused() -> None:
    a = torch.randn(64, 64)
    expected = a @ a.T
    try:
        op.matmul(a, a.T, out=a)
    except TesseraError as error:
        assert error.code == "E_ARGUMENT"  # noqa: PT017
    else:
        torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-4)


def test_wrong_targets_of_a_result_are_refused() -> None:
    refused(lambda: op.matmul(X, X.T, out=torch.empty(3, 4)), "E_SHAPE_MISMATCH", "(3, 3)", "(3, 4)")
    refused(lambda: op.matmul(X, X.T, out=torch.empty(3, 3, dtype=torch.float64)), "E_DTYPE")
    spaced = torch.zeros(3, 6)[:, ::2]
    op.matmul(X, X.T, out=spaced)
    assert spaced.tolist() == [[4.0] * 3] * 3


def test_inputs_mutated_before_evaluation_are_refused_in_every_kind_of_expression() -> None:
    x = torch.randn(8, 8)
    pending = [op.exp(x), op.sum(op.tensor(x)[2:]), op.matmul(x.T, x), op.kernel(lambda a: a * 2.0)(x)]
    x.zero_()
    for tensor in pending:
        with pytest.raises(InputMutatedError, match=r"version \d+ then, \d+ now"):
            tensor.eval()


@pytest.mark.parametrize("count", [1 << 58, 1 << 61, 1 << 62])
def test_results_larger_than_any_memory_are_an_error(count: int) -> None:
    with pytest.raises(MemoryLimitError):
        (op.tensor(torch.ones(1)).broadcast_to((count,)) + 1.0).eval()
    assert (op.tensor(X) + 1.0).tolist() == [[2.0] * 4] * 3


def test_an_unsupported_cpu_is_named_when_kernels_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(target.detect(), arch="nocona", features=frozenset({"sse2", "sse3"}))
    monkeypatch.setattr(target, "detect", lambda: old)
    compilers.kernel_compiler.cache_clear()
    interning.forget_structures(keep_plans=False)
    try:
        pending = op.tensor(torch.ones(3, 3, 3)) * 5.0
        with pytest.raises(UnsupportedTargetError, match="AVX2") as raised:
            pending.eval()
        assert raised.value.hints
        assert pending.is_pending
    finally:
        monkeypatch.undo()
        compilers.kernel_compiler.cache_clear()
    assert pending.tolist() == [[[5.0] * 3] * 3] * 3


def test_a_failure_in_the_compiler_leaves_the_expression_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CpuPlanner, "kernel", fail)
        interning.forget_structures(keep_plans=False)
        pending = op.exp(op.tensor(torch.zeros(2, 3, 2))) * 7.0 - 1.0
        with pytest.raises(MemoryError):
            pending.eval()
        assert pending.is_pending
    assert pending.tolist() == [[[6.0, 6.0]] * 3] * 2
