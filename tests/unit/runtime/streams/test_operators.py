"""Every operator takes `stream=`, and gives on a stream what it gives without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op, stream
from tests.unit.runtime.streams.support import held

X = torch.randn(3, 8) + 2
Y = torch.randn(3, 8) + 2
W = torch.randn(8)
INDICES = torch.tensor([2, 0, 1])
HEADS = torch.randn(1, 2, 5, 32)
IMAGE = torch.randn(1, 3, 8, 9)

UNARY = ["neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "relu", "gelu", "silu", "logical_not"]
UNARY += [
    "expm1",
    "log1p",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "isnan",
    "softplus",
    "elu",
    "leaky_relu",
    "hardswish",
]
UNARY += (
    "acosh asinh atan cosh exp2 log2 log10 sinh tan isfinite isinf nan_to_num reciprocal sign signbit square".split()
)
UNARY += "trunc count_nonzero diff tril triu trace argsort zeros_like ones_like".split()
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "logical_and", "logical_or"]
BINARY += ["eq", "ne", "lt", "le", "gt", "ge"]
BINARY += "atan2 copysign floor_divide fmod hypot logaddexp logical_xor remainder".split()
BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "argmax", "argmin", "logsumexp", "var", "std", "all", "any"]

CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(UNARY, (X,)),
    **dict.fromkeys(BINARY, (X, Y)),
    **dict.fromkeys(REDUCTIONS, (X, 1)),
    **dict.fromkeys(BITS, (INDICES, INDICES)),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (X / 8,)),
    "bitwise_not": (INDICES,),
    "clip": (X, 0.5, 1.5),
    "full_like": (X, 0.5),
    "eye": (3,),
    "linspace": (0.0, 1.0, 5),
    "rand": ((3, 4), 7),
    "randn": ((3, 4), 7),
    "randint": (0, 9, (3, 4), 7),
    "repeat_interleave": (X, 2, 1),
    "roll": (X, 1, 1),
    "tile": (X, (2, 1)),
    "flatten": (op.tensor(X) * 1,),
    "diagonal": (op.tensor(X) * 1,),
    "movedim": (op.tensor(X) * 1, 0, 1),
    "permute": (op.tensor(X) * 1, (1, 0)),
    "matmul": (X, Y.t()),
    "moe": (X, Y.t(), torch.ones(3, 8, 2)),
    "gemm": (X, Y.t(), torch.ones(3, 3)),
    "clamp": (X, 0.5, 1.5),
    "where": (X > 2, X, Y),
    "cast": (X, "int64"),
    "softmax": (X,),
    "log_softmax": (X, 0),
    "layer_norm": (X, W, W),
    "rms_norm": (X, W),
    "reshape": (op.tensor(X) * 1, (4, 6)),
    "transpose": (op.tensor(X) * 1,),
    "broadcast_to": (op.tensor(W) * 1, (4, 8)),
    "concat": ([X, Y], 1),
    "cumsum": (X, 1),
    "cumprod": (X, 1),
    "histc": (X, 4),
    "searchsorted": (X[0], X),
    "nextafter": (X, Y),
    "grouped_matmul": (X, torch.ones(2, 8, 3), torch.tensor([1, 2])),
    "all_reduce": (X,),
    "complex": (X, Y),
    "spectral_conv": (torch.randn(1, 2, 5, 6), torch.randn(2, 2, 3, 3)),
    **dict.fromkeys(("fft", "ifft", "rfft", "fft2", "ifft2", "rfft2"), (X,)),
    **dict.fromkeys(("irfft", "irfft2", "real", "imag", "conj"), (op.complex(X, Y),)),
    "conv2d": (IMAGE, torch.ones(3, 3, 2, 2)),
    "int8_linear": (X, torch.ones(3, 8, dtype=torch.int8), torch.tensor(0.5)),
    "squeeze": (X[None], 0),
    "unsqueeze": (X, 1),
    "swapaxes": (op.tensor(X) * 1, 0, 1),
    "flip": (X, 1),
    "stack": ([X, Y], 1),
    "pad": (X, (1, 2)),
    "zeros": ((2, 3),),
    "ones": ((2, 3),),
    "full": ((2, 3), 0.5),
    "arange": (7,),
    "one_hot": (INDICES, 8),
    "take": (X, INDICES),
    "embedding": (X, INDICES),
    "index_select": (X, 0, INDICES),
    "index_copy": (X, 0, INDICES, X[: len(INDICES)]),
    "gather": (X, 0, INDICES[:, None]),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), (X, 0, INDICES[:, None], Y)),
    "cross_entropy": (X, INDICES[:3]),
    "dropout": (X, 0.5, 3),
    "rope": (X,),
    "einsum": ("ij,kj->ik", X, Y),
    "flash_attention": (HEADS, HEADS, HEADS),
    "paged_attention": (HEADS, HEADS, HEADS, torch.tensor([[0]]), torch.tensor([5])),
    "scaled_attention": (HEADS, HEADS, HEADS),
    "depthwise_conv2d": (IMAGE, torch.ones(3, 2, 2)),
    **dict.fromkeys(("avg_pool2d", "max_pool2d"), (IMAGE, 2)),
    "batch_norm": (IMAGE, torch.zeros(3), torch.ones(3)),
}

NO_OPERATORS = {"autotune", "tensor", "kernel", "constant", "scan", "while_loop", "cond", "map"}
SEVERAL_RESULTS = {"topk", "split", "quantize", "chunk", "unbind", "meshgrid", "sort", "cummax", "cummin"}


def test_no_operator_was_forgotten() -> None:
    assert set(CALLS) == set(op.__all__) - NO_OPERATORS - SEVERAL_RESULTS


@pytest.mark.parametrize("name", sorted(CALLS))
def test_an_operator_on_a_stream(name: str) -> None:
    function: Callable[..., Any] = getattr(op, name)
    parameter = inspect.signature(function).parameters["stream"]
    assert parameter.default is None
    s = stream.create()
    expected = function(*CALLS[name]).torch()
    with held(s):
        result = function(*CALLS[name], stream=s)
        assert not result.is_pending
        assert not s.query()
    torch.testing.assert_close(result.torch(), expected, equal_nan=True)


def test_an_operator_of_two_results_is_one_piece_of_work() -> None:
    s = stream.create()
    values, indices = op.topk(X, 3, stream=s)
    assert s.core.count == 1
    expected = X.topk(3)
    assert torch.equal(values.torch(), expected.values)
    assert torch.equal(indices.torch(), expected.indices)


def test_a_view_of_what_exists_is_no_work() -> None:
    s = stream.create()
    assert op.transpose(X, stream=s).torch().data_ptr() == X.data_ptr()
    assert s.core.count == 0


def test_a_view_of_what_is_on_its_way_is_on_its_way() -> None:
    s = stream.create()
    with held(s):
        y = op.transpose(op.exp(X, stream=s), stream=s)
        z = op.reshape(op.exp(X, stream=s), (24,))
    torch.testing.assert_close(y.torch(), X.exp().t())
    torch.testing.assert_close(z.torch(), X.exp().reshape(24))


@pytest.mark.parametrize("shape", [(1,), (0,), (7, 0), (13, 1), (5, 11)])
def test_odd_shapes_and_unusual_values(shape: tuple[int, ...]) -> None:
    s = stream.create()
    x = torch.randn(shape)
    if x.numel() > 3:
        x.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    y = op.exp(x, stream=s)
    total = op.sum(op.tensor(x).to("fp64"), stream=s)
    torch.testing.assert_close(y.torch(), x.double().exp().float(), equal_nan=True)
    torch.testing.assert_close(total.torch(), x.double().sum(), equal_nan=True)


def test_accumulation_and_tiles_reach_the_stream() -> None:
    s = stream.create()
    a, b = torch.randn(17, 23), torch.randn(23, 9)
    y = op.matmul(a, b, accum_dtype="fp64", stream=s)
    torch.testing.assert_close(y.torch(), (a.double() @ b.double()).float())
    z = op.gemm(a, b, alpha=0.3, stream=s)
    torch.testing.assert_close(z.torch(), 0.3 * (a @ b), atol=1e-5, rtol=1e-4)


def test_an_expression_is_fused_and_run_as_one() -> None:
    s = stream.create()
    z = op.relu(op.matmul(X, Y.t()) + 1.0, stream=s)
    assert s.core.count == 1
    torch.testing.assert_close(z.torch(), (X @ Y.t() + 1).relu(), atol=1e-5, rtol=1e-5)


def test_the_policy_at_the_call_counts() -> None:
    from tessera.numerics import policy

    s = stream.create()
    x = torch.randn(4, 129)
    with held(s), policy("strict"):
        y = op.sum(x, 1, stream=s)
        expected = op.sum(x, 1).eval()
    assert torch.equal(y.torch(), expected.torch())
