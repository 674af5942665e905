"""Gradient rules against finite differences of the references, and gradients of functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import grad, op
from tessera.doors.tensors.shapes import PAD_MODES
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops import OPERATORS, oracle
from tessera.ops.algebra import call
from tessera.ops.attention.trained import COTANGENTS, LOGARITHMS, SCORED_LOGARITHMS
from tessera.ops.flow.records import NAMES as FLOWS

Function = Callable[..., Tensor]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


SCALE = torch.tensor(0.7, dtype=torch.float64)
BENT = (("mul", (0, 1), (), "fp64"), ("tanh", (-1,), (), "fp64"), ("add", (-2, 1), (), "fp64"))
"""Steps of scores: tanh(score x) + x."""


def positive(*shape: int) -> torch.Tensor:
    return normal(*shape).abs() + 0.5


INDEX = torch.tensor([1, 0, 2, 1])
SIZES = torch.tensor([2, 0, 2])
CONDITION = torch.tensor([True, False, True, False])


def _first_order(function: Function) -> Function:
    """The cotangent of a function's operand, as a function of that and of the result's cotangent."""
    return lambda a, g: grad.vjp(function(a), [a], g)[0]


CASES: dict[str, list[tuple[Function, tuple[torch.Tensor, ...]]]] = {
    "matmul": [(op.matmul, (normal(3, 4), normal(4, 5))), (op.matmul, (normal(2, 1, 3, 4), normal(3, 4, 2)))],
    "gemm": [
        (lambda a, b, c: op.gemm(a, b, c, alpha=2, beta=0.5), (normal(3, 4), normal(4, 5), normal(5))),
        (op.gemm, (normal(3, 4), normal(4, 5))),
    ],
    "add": [(op.add, (normal(3, 4), normal(4)))],
    "sub": [(op.sub, (normal(3, 1), normal(2, 1, 4)))],
    "mul": [(op.mul, (normal(3, 4), normal(1, 4)))],
    "div": [(op.div, (normal(3, 4), positive(3, 1)))],
    "pow": [(op.pow, (positive(3, 4), normal(4))), (lambda a: a**2, (normal(3, 4),)), (lambda a: a**3, (normal(3),))],
    "maximum": [(op.maximum, (normal(3, 4), normal(4)))],
    "minimum": [(op.minimum, (normal(3, 4), normal(4)))],
    "clamp": [(lambda a: op.clamp(a, -0.6, 0.7), (normal(5, 4),))],
    "where": [(lambda a, b: op.where(CONDITION, a, b), (normal(3, 4), normal(1)))],
    "cast": [(lambda a: a.to("fp64"), (normal(3),))],
    "gelu": [(op.gelu, (normal(3, 4),)), (lambda a: op.gelu(a, approximate="tanh"), (normal(3, 4),))],
    **{name: [(getattr(op, name), (positive(3, 4),))] for name in ("log", "log1p", "sqrt", "rsqrt")},
    **{
        name: [(getattr(op, name), (normal(3, 4),))]
        for name in "neg abs relu exp expm1 sin cos tanh erf sigmoid silu atan sinh cosh asinh exp2".split()
    },
    **{name: [(getattr(op, name), (positive(3, 4),))] for name in ("log2", "log10")},
    **{name: [(getattr(op, name), (normal(3, 4).sin() * 0.9,))] for name in ("asin", "acos", "atanh", "tan", "erfinv")},
    "acosh": [(op.acosh, (positive(3, 4) + 1.0,))],
    **{name: [(getattr(op, name), (normal(3, 4), normal(4)))] for name in ("atan2", "hypot")},
    "nextafter": [(op.nextafter, (normal(3, 4), normal(4)))],
    "fmod": [(op.fmod, (normal(3, 4), positive(4)))],
    "sort_values": [
        (lambda a: op.sort(a, 0)[0], (normal(4, 3),)),
        (lambda a: op.sort(a, -1, True)[0], (normal(3, 4),)),
    ],
    "sum": [(lambda a: a.sum((0, 2)), (normal(2, 3, 4),)), (lambda a: a.sum(1, keepdims=True), (normal(2, 3),))],
    "mean": [(lambda a: a.mean((0, 2)), (normal(2, 3, 4),)), (lambda a: a.mean(), (normal(2, 3),))],
    "max": [(lambda a: a.max(1), (normal(2, 3, 4),)), (lambda a: a.max(), (normal(2, 3),))],
    "min": [(lambda a: a.min((0, 1)), (normal(2, 3, 4),))],
    "logsumexp": [
        (lambda a: op.logsumexp(a, 1), (normal(2, 3, 4),)),
        (lambda a: op.logsumexp(a, (0, 2)), (normal(2, 3, 2),)),
    ],
    "prod": [(lambda a: a.prod(1), (normal(2, 3, 4),))],
    "softmax": [(op.softmax, (normal(3, 4),)), (lambda a: op.softmax(a, 0), (normal(3, 4),))],
    "log_softmax": [(op.log_softmax, (normal(3, 4),))],
    "layer_norm": [
        (op.layer_norm, (normal(3, 4),)),
        (op.layer_norm, (normal(3, 4), normal(4))),
        (op.layer_norm, (normal(2, 3, 4), normal(4), positive(4))),
    ],
    "rms_norm": [(op.rms_norm, (normal(3, 4),)), (op.rms_norm, (normal(3, 4), normal(4)))],
    "flash_attention": [
        (op.flash_attention, (normal(3, 4), normal(5, 4), normal(5, 2))),
        (op.flash_attention, (normal(3, 4), normal(5, 4), normal(5, 4))),
        (
            lambda q, k, v: op.flash_attention(q, k, v, causal=True, scale=-0.8),
            (normal(2, 2, 3, 2), normal(2, 2, 3, 2), positive(2, 2, 3, 2)),
        ),
        (
            lambda q, k, v: op.flash_attention(q, k, v, causal=True, scale=-0.8),
            (normal(2, 4, 3, 2), normal(1, 2, 5, 2), normal(2, 2, 5, 3)),
        ),
        # The first query sees no key.
        (
            lambda q, k, v, m: op.flash_attention(q, k, v, causal=True, mask=m),
            (normal(2, 4, 2), normal(1, 3, 2), normal(1, 3, 2), normal(4, 3)),
        ),
        (
            lambda q, k, v: op.flash_attention(q, k, v, mask=torch.tensor([True, False, True])),
            (normal(4, 2), normal(3, 2), normal(3, 2)),
        ),
        (op.flash_attention, (normal(3, 2), normal(0, 2), normal(0, 2))),
    ],
    "scaled_attention": [
        (
            lambda q, k, v: op.scaled_attention(q, k, v, k_scale=0.5, v_scale=3.0, causal=True, dtype="fp64"),
            (normal(2, 3, 2), normal(1, 4, 2), normal(1, 4, 3)),
        ),
        (
            lambda q, k, v, s: op.scaled_attention(q, k, v, v_scale=s, dtype="fp64"),
            (normal(3, 2), normal(2, 2), normal(2, 2), normal()),
        ),
    ],
    "paged_attention": [
        (
            lambda q, k, v: op.paged_attention(q, k, v, torch.tensor([[2, 0], [2, 9]]), torch.tensor([3, 2]), window=2),
            (normal(2, 2, 2, 2), normal(3, 1, 2, 2), normal(3, 1, 2, 3)),
        ),
        (
            lambda q, k, v: op.paged_attention(q, k, v, torch.tensor([[1, 0]]), torch.tensor([3]), soft_cap=0.7),
            (normal(1, 2, 2), normal(2, 2, 2, 2), normal(2, 2, 2, 1)),
        ),
    ],
    "scored_attention": [
        (
            lambda q, k, v, m: op.flash_attention(
                q,
                k,
                v,
                score_mod=lambda s, b, h, i, j: op.tanh(s) * m[h] + (j - i) * 0.1,
                mask_mod=lambda b, h, i, j: j < i + 2,
            ),
            (normal(2, 4, 2), normal(1, 3, 2), normal(1, 3, 2), normal(2)),
        ),
    ],
    LOGARITHMS: [
        (lambda *operands: call(LOGARITHMS, *operands, causal=True), (*[normal(2, 4, 3, 2)] * 3, SCALE)),
        (
            lambda *operands: call(LOGARITHMS, *operands),
            (normal(1, 3, 2), normal(2, 1, 4, 2), positive(2, 1, 4, 3), SCALE, normal(3, 4)),
        ),
    ],
    **{
        name: [
            (
                lambda *operands, name=name: call(name, *operands, causal=True),
                (
                    *(normal(2, 4, 3, 2), normal(2, 2, 3, 2), positive(2, 2, 3, 3), normal(2, 4, 3, 3)),
                    *(positive(2, 4, 3, 1), normal(2, 4, 3, 1), SCALE),
                ),
            ),
            (
                lambda *operands, name=name: call(name, *operands, scores=BENT),
                (
                    *(normal(1, 3, 2), positive(1, 4, 2), normal(1, 4, 3), positive(1, 3, 3)),
                    *(normal(1, 3, 1), normal(1, 3, 1), SCALE, normal(3, 4)),
                ),
            ),
        ]
        for of, name in COTANGENTS.items()
        if of != "x"
    },
    COTANGENTS["x"]: [
        (
            lambda *operands, along=along: call(COTANGENTS["x"], *operands, scores=BENT, place=1, along=along),
            (
                *(normal(2, 3, 2), positive(1, 4, 2), normal(1, 4, 3), positive(2, 3, 3)),
                *(normal(2, 3, 1), normal(2, 3, 1), SCALE, normal(3, 4)),
            ),
        )
        for along in ("q", "qk")
    ],
    SCORED_LOGARITHMS: [
        (
            lambda *operands: call(SCORED_LOGARITHMS, *operands, scores=BENT),
            (normal(1, 3, 2), normal(2, 1, 4, 2), positive(2, 1, 4, 3), SCALE, normal(3, 4)),
        ),
    ],
    "conv2d": [
        # Few pixels of many channels are products; many of few, convolutions.
        (
            lambda x, w: op.conv2d(x, w, stride=2, padding=1, dilation=(2, 1)),
            (normal(1, 9, 6, 5), normal(20, 9, 2, 3)),
        ),
        (lambda x, w: op.conv2d(x, w, stride=(1, 2)), (normal(2, 9, 3, 4), normal(2, 9, 1, 1))),
        (lambda x, w: op.conv2d(x, w, stride=2, padding=1), (normal(2, 9, 5, 4), normal(3, 9, 3, 2))),
        (
            lambda x, w: op.conv2d(x, w, stride=(2, 1), padding=(1, 3), dilation=(1, 2)),
            (normal(2, 3, 6, 5), normal(4, 3, 3, 2)),
        ),
        (
            lambda x, w: op.conv2d(x, w, groups=2, padding="same", layout="NHWC"),
            (normal(1, 4, 3, 4), normal(6, 2, 2, 3)),
        ),
        (lambda x, w: op.conv2d(x, w, stride=3), (normal(1, 2, 6, 5), normal(2, 2, 2, 1))),
        # Windows that see padding alone, and images that no window sees: their cotangents are zeros.
        (lambda x, w: op.conv2d(x, w, stride=3, padding=2), (normal(1, 2, 5, 1), normal(2, 2, 1, 1))),
    ],
    "pin": [(lambda a: op.exp(a).pin(fusion=True), (normal(3, 4),))],
    "reshape": [(lambda a: (a * 1).reshape(4, 3), (normal(3, 4),))],
    "transpose": [(lambda a: (a * 1).transpose(2, 0, 1), (normal(2, 3, 4),))],
    "broadcast_to": [(lambda a: (a * 1).broadcast_to(2, 3, 4), (normal(3, 1),))],
    "slice": [
        (lambda a: (a * 1)[1:, ::3], (normal(4, 8),)),
        (lambda a: (a * 1)[:2, 1:7:2], (normal(4, 8),)),
        (lambda a: (a * 1)[::-2, 6:0:-1], (normal(4, 8),)),
    ],
    "concat": [(lambda a, b: op.concat([a, b], 1), (normal(3, 4), normal(3, 2)))],
    "pad": [
        (lambda a: op.pad(a * 1, (1, 2, 0, 3)), (normal(3, 4),)),
        *[(lambda a, mode=mode: op.pad(a * 1, (1, 2, 2, 1), mode), (normal(3, 4),)) for mode in PAD_MODES[1:]],
    ],
    "take": [
        (lambda a: op.embedding(a, torch.tensor([[1, 0], [1, 3]])), (normal(4, 3),)),
        (lambda a: op.take(a, torch.tensor([[1, 0], [1, 2]]), axis=1), (normal(2, 3, 2),)),
    ],
    "put_sum": [(lambda a: call("put_sum", a, INDEX, what="", axis=0, extent=3), (normal(4, 2),))],
    "put": [
        (lambda a, b: op.index_copy(a, 0, torch.tensor([2, 0]), b) * a, (normal(3, 2), normal(2, 2))),
        (lambda a, b: op.index_copy(a, 1, torch.tensor([1]), b), (normal(3, 2), normal(3, 1))),
    ],
    "gather": [(lambda a: op.gather(a, 0, INDEX[:, None]), (normal(3, 2),))],
    "scatter_add": [(lambda a, b: op.scatter_add(a, 0, INDEX[:, None], b), (normal(3, 2), normal(4, 3)))],
    "cumsum": [(op.cumsum, (normal(3, 4),)), (lambda a: op.cumsum(a, 0) * a, (normal(3, 4),))],
    "cumprod": [
        (op.cumprod, (normal(3, 5),)),
        (lambda a: op.cumprod(a * 1.0, 0) * a, (normal(3, 2),)),
        (_first_order(lambda a: op.cumprod(a, 0)), (normal(3, 2), normal(3, 2))),
    ],
    "cummax_values": [(lambda a: op.cummax(a, 0)[0] * a, (normal(4, 3),))],
    "cummin_values": [(lambda a: op.cummin(a)[0], (normal(3, 4),))],
    "scatter": [
        (
            lambda a, b: op.scatter(a, 0, INDEX[:, None], b) * op.scatter(a, 0, INDEX[:, None], 2),
            (normal(3, 2), normal(4, 2)),
        )
    ],
    "scatter_extreme": [
        (lambda a, b: op.scatter_reduce(a, 0, INDEX[:, None], b, "amax"), (normal(3, 2), normal(4, 3))),
        (lambda a, b: op.scatter_reduce(a, 0, INDEX[:, None], b, "amin", False), (normal(3, 2), normal(4, 1))),
        (lambda a, b: op.scatter_reduce(a, 0, INDEX[:, None], b, "mean", False), (normal(3, 2), normal(4, 1))),
    ],
    "scatter_product": [
        (lambda a, b: op.scatter_reduce(a, 0, INDEX[:, None], b, "prod"), (normal(3, 2), normal(4, 3))),
        (lambda a, b: op.scatter_reduce(a, 0, INDEX[:, None], b, "prod", False), (normal(3, 2), normal(4, 1))),
    ],
    "grouped_matmul": [(lambda a, b: op.grouped_matmul(a, b, SIZES), (normal(5, 3), normal(3, 3, 2)))],
    "grouped_outer": [(lambda a, b: call("grouped_outer", a, b, SIZES), (normal(5, 3), normal(5, 2)))],
    "view_as_real": [(lambda a, b: op.imag(op.complex(a, b) * 2.0), (normal(3, 4), normal(3, 4)))],
    "view_as_complex": [(lambda a, b: op.real(op.conj(op.complex(a, b)) + a), (normal(3, 4), normal(4)))],
    "complex_mul": [(lambda a, b: op.imag(op.complex(a, b) * op.complex(b, a + 1.0)), (normal(3, 4), normal(4)))],
    "complex_div": [(lambda a, b: op.imag(op.complex(a, b) / op.complex(b, b + 3.0)), (normal(3, 4), normal(4)))],
    "complex_matmul": [
        (lambda a, b: op.imag(op.complex(a, 2 * a) @ op.complex(b, b + 3.0)), (normal(3, 4), normal(4, 2)))
    ],
    "complex_abs": [(lambda a, b: op.abs(op.complex(a, b)), (normal(3, 4), normal(4)))],
    "to_complex": [(lambda a: op.real(a.to("complex128") * op.complex(a, 3.0)), (normal(3, 4),))],
    "fft": [
        (lambda a: op.abs(op.fft(a)), (normal(2, 5),)),
        (lambda a: op.abs(op.fft(a, 4)), (normal(2, 5),)),
        (lambda a: op.abs(op.fft(a, 7)), (normal(2, 5),)),
        (lambda a: op.imag(op.fft2(op.complex(a, 2 * a), norm="forward") * op.complex(a, 1.0)), (normal(3, 4),)),
    ],
    "ifft": [(lambda a: op.abs(op.ifft(op.complex(a, a * a), 6, 0, "ortho")), (normal(4, 2),))],
    "rfft": [(lambda a: op.abs(op.rfft(a, 5, 0)), (normal(4, 2),)), (lambda a: op.abs(op.rfft2(a)), (normal(3, 4),))],
    "irfft": [
        (lambda a, b: op.irfft(op.complex(a, b), None, 0), (normal(4, 2), normal(4, 2))),
        (lambda a, b: op.irfft(op.complex(a, b), 5, norm="ortho"), (normal(2, 4), normal(2, 4))),
        (lambda a, b: op.irfft2(op.complex(a, b), s=(5, 6)), (normal(3, 4), normal(3, 4))),
    ],
    "kernel_spectrum": [
        (
            lambda x, w: op.spectral_conv(x, w, padding=(2, 1), stride=(1, 2), dilation=(2, 1)),
            (normal(1, 2, 4, 5), normal(1, 2, 2, 3)),
        )
    ],
    "spectral_conv": [
        (lambda x, w: op.spectral_conv(x, w, groups=2, padding=1), (normal(2, 2, 3, 4), normal(4, 1, 3, 2)))
    ],
    "pointwise_mul": [
        (
            lambda a, b: op.imag(call("pointwise_mul", op.complex(a, 2 * a), op.complex(b, b + 1.0), groups=2)),
            (normal(2, 4, 2, 3), normal(2, 2, 2, 3)),
        ),
        (
            lambda a, b: op.imag(
                call("pointwise_mul", op.complex(a, 2 * a), op.complex(b, b + 1.0), groups=2, by="image")
            ),
            (normal(2, 4, 2, 3), normal(4, 3, 2, 3)),
        ),
        (
            lambda a, b: op.imag(
                call("pointwise_mul", op.complex(a, 2 * a), op.complex(b, b + 1.0), groups=2, by="kernel")
            ),
            (normal(2, 4, 2, 3), normal(2, 2, 2, 3)),
        ),
    ],
    "spread": [(lambda a: call("spread", a, shape=(6, 5), steps=(2, 1)), (normal(3, 4),))],
    "refit": [(lambda a: call("refit", a, shape=(2, 5)), (normal(3, 4),))],
    "depthwise_conv2d": [(lambda a, b: op.depthwise_conv2d(a, b, padding=1), (normal(1, 2, 3, 4), normal(2, 2, 3)))],
    "sum_pool2d": [(lambda a: op.avg_pool2d(a, 2, 1, 1), (normal(1, 2, 3, 4),))],
    "max_pool2d": [(lambda a: op.max_pool2d(a, (2, 3), (2, 1), 1, 1, True), (normal(1, 2, 5, 4),))],
    "topk_values": [(lambda a: op.topk(a, 2, 0)[0], (normal(4, 3),))],
    "scatter_along": [(_first_order(lambda a: op.topk(a, 2, 0)[0]), (normal(4, 3), normal(2, 3)))],
    "rfft_adjoint": [
        (_first_order(lambda a: op.abs(op.rfft(a, 3, 0)) ** 2), (normal(4, 2), normal(2, 2))),
        (_first_order(lambda a: op.abs(op.rfft(a, 6, 0)) ** 2), (normal(4, 2), normal(4, 2))),
    ],
    "irfft_adjoint": [
        (_first_order(lambda a: op.irfft(op.rfft(a) * op.rfft(a), 3)), (normal(2, 5), normal(2, 3))),
        (_first_order(lambda a: op.irfft(op.rfft(a) * op.rfft(a), 8)), (normal(2, 5), normal(2, 8))),
    ],
    "spectrum_adjoint": [
        (
            lambda x, w, g: grad.vjp(op.spectral_conv(x, w, padding=1, dilation=(1, 2)), [x, w], g)[1],
            (normal(1, 2, 3, 4), normal(3, 2, 2, 2), normal(1, 3, 4, 4)),
        )
    ],
}

NOT_DIFFERENTIABLE = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "argmax"}
NOT_DIFFERENTIABLE |= {"iota", "philox", "checked_index", "checked_pages", "checked_divisor"}
NOT_DIFFERENTIABLE |= {"topk_indices", "sort_indices", "cummax_indices", "cummin_indices", "histc", "searchsorted"}
NOT_DIFFERENTIABLE |= {"floor", "ceil", "round", "floor_divide"}
NOT_DIFFERENTIABLE |= {*FLOWS}  # tests/unit/doors/test_flow.py
NOT_DIFFERENTIABLE |= {
    "constrain",
    "across",
    "shard_map",
    "to_part",
    "from_parts",
}  # of meshes; on one device they are their operands
NOT_DIFFERENTIABLE |= {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
NOT_DIFFERENTIABLE |= {"bitwise_left_shift", "bitwise_right_shift"}


def test_every_operator_has_a_case() -> None:
    assert set(CASES) | NOT_DIFFERENTIABLE == set(OPERATORS)


def finite_difference(
    function: Function, inputs: list[torch.Tensor], number: int, weight: torch.Tensor
) -> torch.Tensor:
    """Central differences of <weight, function(inputs)> by each element of one input."""
    step = 1e-6
    gradient = torch.zeros_like(inputs[number])
    for place in range(inputs[number].numel()):
        values = []
        for sign in (1, -1):
            moved = [x.clone() for x in inputs]
            moved[number].view(-1)[place] += sign * step
            values.append((oracle.reference(function(*map(op.tensor, moved))) * weight).sum())
        gradient.view(-1)[place] = (values[0] - values[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("function", "inputs"),
    [pytest.param(*case, id=f"{name}{number}") for name, cases in CASES.items() for number, case in enumerate(cases)],
)
def test_a_rule_agrees_with_finite_differences(function: Function, inputs: tuple[torch.Tensor, ...]) -> None:
    tensors = [op.tensor(x) for x in inputs]
    output = function(*tensors)
    weight = normal(*output.shape)
    cotangents = grad.vjp(output, tensors, weight)
    for number, cotangent in enumerate(cotangents):
        assert cotangent.shape == tensors[number].shape
        expected = finite_difference(function, list(inputs), number, weight)
        torch.testing.assert_close(cotangent.torch(), expected, rtol=1e-6, atol=1e-7)


def test_corners_follow_torch() -> None:
    x = torch.tensor([0.0, 0.0, 2.0, -1.0], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    functions: list[tuple[Function, Callable[..., torch.Tensor]]] = [
        (lambda a: op.maximum(a, y).sum(), lambda a: torch.maximum(a, y).sum()),
        (lambda a: op.abs(a).sum(), lambda a: a.abs().sum()),
        (lambda a: op.relu(a).sum(), lambda a: a.relu().sum()),
        (lambda a: (a**2).sum(), lambda a: (a**2).sum()),
        (lambda a: op.clamp(a, 0, 2).sum(), lambda a: a.clamp(0, 2).sum()),
        (lambda a: a.max(), lambda a: a.amax()),
        (lambda a: a[:2].prod(), lambda a: a[:2].prod()),
        (lambda a: a.prod(), lambda a: a.prod()),
    ]
    for ours, theirs in functions:
        leaf = x.clone().requires_grad_()
        theirs(leaf).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(grad.grad(ours)(x).torch(), leaf.grad)


def test_attention_has_a_gradient_by_a_scale_of_zero() -> None:
    q, k, v = normal(3, 2), normal(4, 2), normal(4, 2)
    slope = grad.grad(lambda scale: op.flash_attention(q, k, v, scale=scale).sum())
    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    ((q @ k.T * scale).softmax(-1) @ v).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(slope(torch.zeros((), dtype=torch.float64)).torch(), scale.grad)


def test_no_weight_of_attention_is_above_one_whatever_rounding_leaves_of_large_scores() -> None:
    q, k, v = normal(33, 16).float() * 3e4, normal(34, 16).float() * 3e4, normal(34, 16).float()
    slope = grad.grad(lambda v: op.flash_attention(q, k, v, scale=0.37).sum())
    assert slope(v).torch().max() <= 33


def test_prod_with_one_zero_and_with_two() -> None:
    for values, expected in (([2.0, 0.0, 3.0], [0.0, 6.0, 0.0]), ([0.0, 0.0, 3.0], [0.0, 0.0, 0.0])):
        assert grad.grad(lambda a: a.prod())(torch.tensor(values)).tolist() == expected


def test_value_and_gradients_by_several_arguments() -> None:
    a, b = normal(3, 4), normal(4)
    value, (by_a, by_b) = grad.value_and_grad(lambda a, b: (op.tanh(a) * b).sum(), (0, 1))(a, b)
    torch.testing.assert_close(value.torch(), (a.tanh() * b).sum())
    torch.testing.assert_close(by_a.torch(), (1 - a.tanh() ** 2) * b)
    torch.testing.assert_close(by_b.torch(), a.tanh().sum(0))


def test_gradients_are_expressions_and_have_gradients() -> None:
    x = torch.tensor(0.7, dtype=torch.float64)
    second = grad.grad(grad.grad(op.exp))
    assert second(x).item() == pytest.approx(torch.exp(x).item())


def test_the_gradient_by_an_image_of_a_gradient_by_weights() -> None:
    x, w = normal(1, 2, 6, 6), normal(2, 2, 3, 3)
    slope = grad.grad(lambda a: (grad.grad(lambda b: op.tanh(op.conv2d(a, b)).sum())(w) ** 2).sum())
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    (by_b,) = torch.autograd.grad(torch.nn.functional.conv2d(a, b).tanh().sum(), b, create_graph=True)
    torch.testing.assert_close(slope(x).torch(), torch.autograd.grad((by_b**2).sum(), a)[0])


def test_an_inner_gradient_holds_the_outer_argument_still() -> None:
    x = torch.tensor(3.0, dtype=torch.float64)
    outer = grad.grad(lambda a: a * grad.grad(lambda b: a * b * b)(a))
    assert outer(x).item() == pytest.approx(6 * 9)  # d/da of a * 2 a a
    assert grad.grad(lambda a: grad.grad(lambda b: a + b)(a) * a)(x).item() == pytest.approx(1)


def test_gradients_are_in_the_inputs_dtype() -> None:
    x = torch.ones(3).bfloat16()
    gradient = grad.grad(lambda a: (a.to("fp32") * 2.5).sum())(x)
    assert gradient.dtype.name == "bf16"
    assert gradient.tolist() == [2.5, 2.5, 2.5]


def test_what_has_no_gradient_says_so() -> None:
    x = op.tensor(torch.ones(3))
    assert grad.vjp(x * 2, [op.tensor(torch.ones(2))])[0].tolist() == [0.0, 0.0]
    with pytest.raises(ShapeMismatchError, match="result of shape"):
        grad.grad(lambda a: a * 2)(torch.ones(3))
    with pytest.raises(DTypeError):
        grad.vjp(x > 0, [x])
    with pytest.raises(DTypeError):
        grad.vjp(x, [op.tensor([1, 2])])
    with pytest.raises(ArgumentError, match="pending"):
        grad.vjp(x, [x * 2])
    with pytest.raises(ShapeMismatchError, match="cotangent"):
        grad.vjp(x * 2, [x], torch.ones(2))


def test_an_input_of_another_library_is_refused() -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match="gradient by a torch"):
        grad.vjp(op.relu(x), [x])  # type: ignore[list-item]
