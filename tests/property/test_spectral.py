"""`op.spectral_conv` of drawn geometries against torch's convolution in float64, constants, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tessera import op, profiler
from tessera.compiler import pipeline
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops.algebra import call
from tessera.ops.spectral.records import ConvolutionGeometry, convolve
from tessera.runtime.libraries import fourier
from tessera.scheduling.families.convolution.spectral_cost import fast_points
from tests.property.checking import assert_same_bits
from tests.property.operands import laid_out
from tests.whole import examples


def direct(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    added = None if bias is None else bias.double()
    return torch.nn.functional.conv2d(x.double(), w.double(), added, **options)


def close(result: Tensor, expected: torch.Tensor, scale: float = 0.0) -> None:
    """Within some roundings of the largest result, or of `scale` where that is more: what transforms round by is the
    size of all they read, also where a result is a sum over padding alone."""
    found = result.torch()
    assert found.shape == expected.shape
    scale = max(scale, float(expected.abs().max()) if expected.numel() else 0.0)
    bound = 48 * torch.finfo(found.dtype).eps * max(scale, 1e-3)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


EXTENT = st.sampled_from((1, 2, 3, 5, 8, 13, 31, 33))
WINDOW = st.sampled_from((1, 2, 3, 5, 7, 16, 31))


@settings(max_examples=examples(30, 60))
@given(data=st.data())
def test_drawn_geometries(data: st.DataObject) -> None:
    images, groups = data.draw(st.sampled_from((0, 1, 1, 2, 3))), data.draw(st.sampled_from((1, 1, 2, 3)))
    depth, outputs = data.draw(st.sampled_from((1, 1, 2, 9))), data.draw(st.sampled_from((1, 2, 3)))
    height, width, tall, wide = data.draw(EXTENT), data.draw(EXTENT), data.draw(WINDOW), data.draw(WINDOW)
    dilation = data.draw(st.sampled_from(((1, 1), (1, 1), (2, 3), (1, 5))))
    stride = data.draw(st.sampled_from((1, 1, 2, (3, 1))))
    reach = (dilation[0] * (tall - 1) + 1, dilation[1] * (wide - 1) + 1)
    around = tuple(
        data.draw(st.integers(max(0, -(-(r - extent) // 2)), r + 3))
        for r, extent in zip(reach, (height, width), strict=True)
    )
    dtype = data.draw(st.sampled_from((torch.float32, torch.float32, torch.float64, torch.bfloat16)))
    x = laid_out(
        normal(images, depth * groups, height, width, dtype=dtype),
        data.draw(st.sampled_from(("contiguous", "transposed", "stepped"))),
    )
    w = normal(outputs * groups, depth, tall, wide, dtype=dtype)
    bias = data.draw(st.sampled_from((None, normal(outputs * groups, dtype=dtype))))
    options: dict[str, Any] = {"stride": stride, "padding": around, "dilation": dilation, "groups": groups}
    kernel = op.constant(w) if data.draw(st.booleans()) else w
    close(op.spectral_conv(x, kernel, bias, **options), direct(x, w, bias, **options))


@settings(max_examples=examples(30, 60))
@given(data=st.data())
def test_the_least_points_are_enough_whatever_side_is_padded(data: st.DataObject) -> None:
    """As few points as `ConvolutionGeometry` asks for, which sizes that are fast would hide."""
    small = st.integers(1, 6)
    image, kernel = (data.draw(small), data.draw(small)), (data.draw(small), data.draw(small))
    dilation, stride = (data.draw(st.integers(1, 3)), 1), (data.draw(st.integers(1, 2)), 1)
    sides = data.draw(st.tuples(*[st.integers(0, 9)] * 4))
    window = ConvolutionGeometry(stride, sides, dilation)
    assume(min(window.results(image, kernel)) > 0)
    top, left, bottom, right = sides
    x, w = normal(2, 3, *image, dtype=torch.float64), normal(2, 3, *kernel, dtype=torch.float64)
    found = convolve(op.tensor(x), op.tensor(w), window, window.least_points(image, kernel))
    whole = torch.nn.functional.pad(x, (left, right, top, bottom))
    close(found, direct(whole, w, stride=stride, dilation=dilation), scale=float(x.abs().max() * w.abs().sum()))


def test_a_convolution_that_is_rewritten_may_be_padded_more_below_than_above() -> None:
    x, w = normal(3, 2, 1, 16), normal(1, 16, 10, 6)
    result = call("conv2d", op.tensor(x), op.tensor(w), padding=(7, 5, 9, 5))
    assert "spectral-convolution" in result.inspect("rewrites")
    whole = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (5, 5, 7, 9))
    close(result, direct(whole, w).permute(0, 2, 3, 1))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [(3, 3), (4, 5), (31, 2)])
def test_named_paddings_and_channels_last(padding: str, size: tuple[int, int]) -> None:
    x, w = normal(2, 3, 33, 17), normal(5, 3, *size)
    expected = direct(x, w, padding=padding)
    close(op.spectral_conv(x, w, padding=padding), expected)
    last = x.permute(0, 2, 3, 1).contiguous()
    result = op.spectral_conv(last, w, normal(5), padding=padding, layout="NHWC")
    close(result, (expected + normal(5).double()[:, None, None]).permute(0, 2, 3, 1))


def test_kernels_larger_than_images_and_padding_larger_than_kernels() -> None:
    close(
        op.spectral_conv(normal(1, 2, 3, 4), normal(2, 2, 31, 31), padding=15),
        direct(normal(1, 2, 3, 4), normal(2, 2, 31, 31), padding=15),
    )
    close(
        op.spectral_conv(normal(1, 2, 3, 4), normal(2, 2, 2, 2), padding=9),
        direct(normal(1, 2, 3, 4), normal(2, 2, 2, 2), padding=9),
    )


def test_the_spectrum_of_a_constant_is_computed_once_and_anew_when_it_changes() -> None:
    x, w = normal(1, 3, 20, 20), normal(3, 1, 7, 7)
    kernel = op.constant(w)

    def steps() -> list[str]:
        with profiler.session() as session:
            op.spectral_conv(x, kernel, padding=3, groups=3).eval()
        return [record.operator for record in session.records() if record.kind == "kernel"]

    assert "kernel_spectrum" not in steps()
    assert any("kernel_spectrum" in record.operator for record in _profile_of(x, w))
    close(op.spectral_conv(x, kernel, padding=3, groups=3), direct(x, w, padding=3, groups=3))
    w.mul_(-2.0)
    close(op.spectral_conv(x, op.constant(w), padding=3, groups=3), direct(x, w, padding=3, groups=3))


def _profile_of(x: torch.Tensor, w: torch.Tensor) -> Any:
    with profiler.session() as session:
        op.spectral_conv(x, w, padding=3, groups=3).eval()
    return session.records()


def test_what_follows_is_fused_and_results_can_be_given_memory() -> None:
    x, w = normal(1, 4, 16, 16), normal(4, 1, 9, 9)
    out = torch.empty(1, 4, 16, 16)
    op.relu(op.spectral_conv(x, w, normal(4), padding=4, groups=4) * 0.5).eval(out)
    expected = (direct(x, w, normal(4), padding=4, groups=4) * 0.5).relu()
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)
    first = op.spectral_conv(x, w, padding=4, groups=4).torch().clone()
    assert_same_bits(op.spectral_conv(x, w, padding=4, groups=4).torch(), first)


def test_wrong_operands_are_refused_at_the_call() -> None:
    x, w = normal(1, 4, 8, 8), normal(4, 2, 3, 3)
    with pytest.raises(ShapeMismatchError, match="the image has 4 channels, the weights take 2 in each of 1 groups"):
        op.spectral_conv(x, w)
    with pytest.raises(ShapeMismatchError, match="the window reaches over"):
        op.spectral_conv(x, normal(4, 4, 9, 9))
    with pytest.raises(ShapeMismatchError, match=r"images are \[N, C, H, W\]"):
        op.spectral_conv(x[0], w)
    with pytest.raises(ShapeMismatchError, match="have elements"):
        op.spectral_conv(normal(1, 4, 0, 8), normal(4, 4, 3, 3), padding=3)
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.spectral_conv(x, normal(4, 4, 3, 3).double())
    wrong: list[dict[str, Any]] = [
        {"stride": 0},
        {"padding": -1},
        {"groups": 0},
        {"padding": "full"},
        {"layout": "CHWN"},
    ]
    for options in wrong:
        with pytest.raises(ArgumentError):
            op.spectral_conv(x, normal(4, 4, 3, 3), **options)
    with pytest.raises(ShapeMismatchError, match="a bias of shape"):
        op.spectral_conv(x, normal(4, 4, 3, 3), normal(3))


@pytest.mark.parametrize("least", [1, 2, 3, 7, 17, 43, 97, 127, 142, 257, 1000])
def test_sizes_of_transforms_are_smooth_even_and_near(least: int) -> None:
    points = fast_points(least)
    assert least <= points <= max(2 * least, 2)
    assert points % 2 == 0
    rest = points
    for factor in (2, 3, 5):
        while rest % factor == 0:
            rest //= factor
    assert rest == 1


def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "find", lambda: None)
    pipeline.forget_plans()


def test_without_a_library_for_kernels_torch_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(2, 6, 12, 15), normal(4, 3, 5, 5)
    options: dict[str, Any] = {"padding": (2, 4), "stride": (1, 2), "groups": 2}
    native = op.spectral_conv(x, w, **options).torch().clone()
    _by_torch(monkeypatch)
    called = op.spectral_conv(x, w, **options)
    close(called, direct(x, w, **options))
    torch.testing.assert_close(called.torch(), native, atol=1e-4, rtol=1e-4)
    pipeline.forget_plans()


@pytest.mark.parametrize(("images", "depth", "outputs", "groups"), [(1, 9, 5, 1), (3, 1, 2, 4), (1, 2, 1, 1)])
def test_workers_share_images_groups_and_results(images: int, depth: int, outputs: int, groups: int) -> None:
    x, w = normal(images, depth * groups, 90, 70), normal(outputs * groups, depth, 9, 7)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            pipeline.forget_plans()
            results.append(op.spectral_conv(x, w, padding=3, groups=groups).torch().clone())
        finally:
            torch.set_num_threads(threads)
    assert_same_bits(results[0], results[1])
    close(op.spectral_conv(x, w, padding=3, groups=groups), direct(x, w, padding=3, groups=groups))
    pipeline.forget_plans()


def test_a_nan_stays_in_its_channel() -> None:
    x, w = normal(1, 2, 16, 16), normal(2, 1, 5, 5)
    x[0, 0, 3, 3] = torch.nan
    found = op.spectral_conv(x, w, padding=2, groups=2).torch()
    assert found[0, 0].isnan().all()
    assert found[0, 1].isfinite().all()


def test_on_the_interpreted_device() -> None:
    x, w = normal(1, 3, 9, 9), normal(2, 3, 4, 4)
    result = op.spectral_conv(op.tensor(x, device="interpreter"), op.tensor(w, device="interpreter"), padding=2)
    close(result, direct(x, w, padding=2))
