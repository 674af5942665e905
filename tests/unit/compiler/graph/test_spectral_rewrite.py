"""Convolutions with large windows become spectral where the model says so: right either way, logged, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tessera import numerics, op, profiler
from tessera.compiler import pipeline, planning
from tessera.handle import Tensor
from tessera.lazy.node import joined
from tessera.scheduling.families.convolution import spectral_rewrite


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def direct(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.nn.functional.conv2d(x.double(), w.double(), **options)


def close(result: Tensor, expected: torch.Tensor, relative: float = 1e-5) -> None:
    found = result.torch()
    assert found.shape == expected.shape
    bound = relative * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The model says that transforms are faster, whatever the window."""
    monkeypatch.setattr(spectral_rewrite, "ENOUGH", 0.0)
    monkeypatch.setattr(spectral_rewrite, "LEAST_TAPS", 1)
    pipeline.forget_plans()
    yield
    monkeypatch.undo()
    pipeline.forget_plans()


def steps(tensor: Tensor) -> list[str]:
    with profiler.session() as session:
        tensor.eval()
    return [record.operator for record in session.records() if record.kind == "kernel"]


X, W, TAPS = normal(2, 4, 19, 23), normal(6, 2, 5, 7), normal(4, 1, 9, 9)

WRITTEN: dict[str, tuple[Callable[[], Tensor], Callable[[], torch.Tensor]]] = {
    "conv2d": (
        lambda: op.conv2d(X, op.constant(W), padding=3, groups=2),
        lambda: direct(X, W, padding=3, groups=2),
    ),
    "stride and dilation": (
        lambda: op.conv2d(X, W, stride=(2, 1), dilation=(1, 2), padding=(2, 6), groups=2),
        lambda: direct(X, W, stride=(2, 1), dilation=(1, 2), padding=(2, 6), groups=2),
    ),
    "channels last": (
        lambda: op.conv2d(X.permute(0, 2, 3, 1).contiguous(), W, padding="same", groups=2, layout="NHWC").transpose(
            0, 3, 1, 2
        ),
        lambda: direct(X, W, padding="same", groups=2),
    ),
    "depthwise": (lambda: op.depthwise_conv2d(X, TAPS, padding=4), lambda: direct(X, TAPS, padding=4, groups=4)),
    "depthwise, channels last": (
        lambda: op.depthwise_conv2d(
            X.permute(0, 2, 3, 1).contiguous(), op.constant(TAPS), padding=4, stride=2, layout="NHWC"
        ).transpose(0, 3, 1, 2),
        lambda: direct(X, TAPS, padding=4, stride=2, groups=4),
    ),
    "inside an expression": (
        lambda: op.relu(op.conv2d(op.exp(X), W * 0.5, padding=3, groups=2) + X.mean()),
        lambda: torch.relu(direct(X.double().exp(), W.double() * 0.5, padding=3, groups=2) + X.double().mean()),
    ),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_rewritten_is_right(name: str) -> None:
    written, expected = WRITTEN[name]
    assert "spectral_conv" in steps(written())
    close(written(), expected())


@pytest.mark.usefixtures("always")
def test_several_results_of_which_some_are_leaves_and_numbers() -> None:
    x, w = op.tensor(X), op.tensor(W)
    first, second = op.conv2d(x, w, padding=3, groups=2) * 2.5, op.exp(x) + x
    structure, leaves = joined([first, second])
    planned = planning.as_planned(structure).structure
    assert planned is not structure
    assert planned.leaf_count == structure.leaf_count == len(leaves)
    op_results = (first, second)
    from tessera import eval as evaluate

    evaluate(*op_results)
    close(first, direct(X, W, padding=3, groups=2) * 2.5)
    torch.testing.assert_close(second.torch(), X.exp() + X)


@pytest.mark.usefixtures("always")
def test_the_firing_is_logged() -> None:
    text = op.conv2d(X, W, padding=3, groups=2).inspect("rewrites")
    first = text.splitlines()[0]
    assert first.startswith("spectral-convolution: conv2d of a window of 5 x 7 (")
    assert "ifft . pointwise_mul . fft of 24 x " in first
    assert "us predicted" in first
    assert "spectral_conv" in op.conv2d(X, W, padding=3, groups=2).inspect("schedule")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_other_policies_leave_it(mode: Any) -> None:
    with numerics.policy(mode):
        tensor = op.conv2d(X, W, padding=3, groups=2)
        assert "spectral" not in tensor.inspect("rewrites")
        close(tensor, direct(X, W, padding=3, groups=2))


@pytest.mark.usefixtures("always")
def test_pinned_convolutions_stay_as_they_are_pinned() -> None:
    pinned = op.depthwise_conv2d(X, TAPS, padding=4).pin(fusion=True)
    assert "spectral" not in pinned.inspect("rewrites")
    close(pinned, direct(X, TAPS, padding=4, groups=4))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_constant_kernel_is_transformed_once_and_anew_when_it_changes(dtype: torch.dtype) -> None:
    x, w = X.to(dtype), W.to(dtype)
    kernel = op.constant(w)
    assert "kernel_spectrum" not in steps(op.conv2d(x, kernel, padding=3, groups=2))
    w.add_(1.0)
    bound = max(1e-5, 2 * torch.finfo(dtype).eps)
    close(op.conv2d(x, op.constant(w), padding=3, groups=2), direct(x, w, padding=3, groups=2), bound)


def test_the_model_decides() -> None:
    """A window of 31 x 31 in every channel is a thousand products a pixel; one of 3 x 3 is nine."""
    image = normal(1, 64, 112, 112)
    large = op.depthwise_conv2d(image, op.constant(normal(64, 1, 31, 31)), padding=15)
    small = op.depthwise_conv2d(image, op.constant(normal(64, 1, 3, 3)), padding=1)
    dense = op.conv2d(normal(1, 8, 112, 112), op.constant(normal(8, 8, 31, 31)), padding=15)
    assert "spectral-convolution" in large.inspect("rewrites")
    assert "spectral-convolution" in dense.inspect("rewrites")
    assert "spectral-convolution" not in small.inspect("rewrites")
    many = op.conv2d(normal(1, 128, 64, 64), op.constant(normal(256, 128, 9, 9)), padding=4)
    assert "spectral-convolution" not in many.inspect("rewrites")  # its spectra would take 300 MB
