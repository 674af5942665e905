"""Depthwise convolution, pooling, inference's batch norm: what they compute, read in place, fuse and refuse."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera
from tessera import autotune, grad, numerics, op, profile
from tessera.compiler.explain.inspection import choices_of, schedules_of
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DeviceError, DTypeError, MemoryLimitError, ShapeMismatchError
from tessera.ir.graph.operations import GraphOperation
from tessera.ops import oracle
from tessera.scheduling.families.window.space import WindowProblem, space
from tests.whole import examples, some

functional = torch.nn.functional
Layout = Any


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def close(result: tessera.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(
        result.torch().double(), expected.double(), atol=tolerance, rtol=tolerance, equal_nan=True
    )


def arranged(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x if layout == "NCHW" else x.permute(0, 2, 3, 1).contiguous()


def planes(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x if layout == "NCHW" else x.permute(0, 3, 1, 2)


# -- depthwise convolution --------------------------------------------------------------------------------------------


@settings(max_examples=examples(6, 12))
@given(
    st.sampled_from(("NCHW", "NHWC")),
    st.tuples(st.integers(1, 2), st.sampled_from((1, 3, 17, 40)), st.integers(5, 40), st.integers(5, 40)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 3),
    st.integers(1, 2),
)
def test_it_is_torchs_grouped_convolution(
    layout: Layout,
    shape: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: int,
    multiplier: int,
) -> None:
    channels = shape[1]
    x, weight = normal(*shape), normal(channels * multiplier, 1, *kernel)
    bias = normal(channels * multiplier)
    result = op.depthwise_conv2d(arranged(x, layout), weight, bias, stride=stride, padding=padding, layout=layout)
    expected = functional.conv2d(x.double(), weight.double(), bias.double(), stride, padding, groups=channels)
    close(result, arranged(expected, layout))


def test_dilation_spreads_the_taps() -> None:
    x, weight = normal(2, 5, 23, 19), normal(5, 1, 3, 3)
    expected = functional.conv2d(x.double(), weight.double(), padding=2, dilation=2, groups=5)
    close(op.depthwise_conv2d(x, weight, padding=2, dilation=2), expected)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    some(product((torch.bfloat16, torch.float16, torch.float64), ("NCHW", "NHWC")), lambda case: case[0]),
)
def test_dtypes(layout: Layout, dtype: torch.dtype) -> None:
    x, weight = arranged(normal(1, 20, 18, 21), layout).to(dtype), normal(20, 3, 3).to(dtype)
    result = op.depthwise_conv2d(x, weight, padding=1, stride=2, layout=layout)
    assert result.dtype.torch is dtype
    # fp64 sums nine products in an order of its own; narrower results are rounded once, which outweighs that.
    roundings = 18 if dtype is torch.float64 else 4
    close(result, oracle.reference(result), roundings * torch.finfo(dtype).eps)


def test_views_are_read_in_place() -> None:
    x, weight = normal(2, 9, 40, 60), normal(4, 3, 3)
    part = x[:, 1:9:2, 3:33, 4:50]
    result = op.depthwise_conv2d(part, weight, padding=1)
    assert len(choices_of(result.structure)) == 1
    close(result, functional.conv2d(part.double(), weight[:, None].double(), padding=1, groups=4))


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert op.depthwise_conv2d(normal(0, 4, 9, 9), normal(4, 3, 3), padding=1).torch().shape == (0, 4, 9, 9)


def test_what_is_no_number_reaches_the_windows_that_see_it_and_no_others() -> None:
    x, weight = normal(1, 2, 12, 20), normal(2, 3, 3)
    x[0, 1, 5, 7] = math.nan
    seen = op.depthwise_conv2d(x, weight, padding=1).torch().isnan()
    expected = torch.zeros_like(seen)
    expected[0, 1, 4:7, 6:9] = True
    assert torch.equal(seen, expected)


def test_bias_batch_norm_and_activation_run_in_its_kernel() -> None:
    x, weight, bias = normal(2, 6, 20, 33), normal(6, 1, 3, 3), normal(6)
    mean, var, gain, offset = normal(6, seed=1), normal(6, seed=2).abs() + 0.5, normal(6, seed=3), normal(6, seed=4)
    convolved = op.depthwise_conv2d(x, weight, bias, padding=1)
    result = op.silu(op.batch_norm(convolved, mean, var, gain, offset))
    bodies = [choice.subject.item.operation.body.block for choice in choices_of(result.structure)]
    kernels = [{each.operator for each in body.ops if isinstance(each, GraphOperation)} for body in bodies]
    assert [{"depthwise_conv2d", "add", "mul", "silu"} <= names for names in kernels].count(True) == 1
    product = functional.conv2d(x.double(), weight.double(), bias.double(), padding=1, groups=6)
    normed = functional.batch_norm(product, mean.double(), var.double(), gain.double(), offset.double())
    close(result, functional.silu(normed))


def test_what_a_kernel_needs_first_is_made_once_where_its_operations_run_one_by_one() -> None:
    x, weight = normal(1, 20, 16, 16).to(memory_format=torch.channels_last), normal(20, 1, 3, 3)
    result = op.relu(op.depthwise_conv2d(x, weight, padding=1)).pin(fusion=False)
    kernels = [choice.subject.item.name.rsplit("_", 1)[0] for choice in choices_of(result.structure)]
    assert kernels == ["copy", "depthwise_conv2d", "relu"]
    close(result, torch.relu(functional.conv2d(x.double(), weight.double(), padding=1, groups=20)))


def test_results_do_not_depend_on_the_number_of_workers_nor_on_the_schedule() -> None:
    x, weight = normal(3, 40, 30, 40), normal(40, 5, 5)
    plain = op.depthwise_conv2d(x, weight, padding=2).torch()
    with numerics.policy("deterministic"):
        assert torch.equal(op.depthwise_conv2d(x, weight, padding=2).torch(), plain)
    pinned = op.depthwise_conv2d(x, weight, padding=2).pin(rows=2, vectorize=1, tile=(8, 64))
    assert torch.equal(pinned.torch(), plain)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_legal_schedule_computes_the_same(layout: Layout) -> None:
    x, weight = arranged(normal(2, 36, 37, 45), layout), normal(36, 3, 3)

    def convolved(image: Any, taps: Any) -> tessera.Tensor:
        return op.depthwise_conv2d(image, taps, padding=1, layout=layout)

    launch = launches_of_operator(convolved, [tuple(x.shape), tuple(weight.shape)], "fp32")[-1]
    problem = launch.subject.problem(launch.call.shaped.extents, 1)
    assert isinstance(problem, WindowProblem)
    schedules = space(problem)
    assert schedules.violations(launch.schedule) == ()
    draw, expected = random.Random(1), convolved(x, weight).torch()
    for _ in range(4):
        schedule = schedules.draw(draw)
        pinned = convolved(x, weight).pin(**schedule)
        assert schedules_of(pinned.structure)[-1] == schedule
        assert torch.equal(pinned.torch(), expected)


def test_the_space_has_some_hundred_schedules() -> None:
    launch = launches_of_operator(op.depthwise_conv2d, [(1, 256, 112, 112), (256, 1, 3, 3)], "fp32")[-1]
    problem = launch.subject.problem(launch.call.shaped.extents, 1)
    assert isinstance(problem, WindowProblem)
    assert 200 <= len(list(space(problem).candidates())) <= 2000


def test_it_is_tuned_like_any_other_kernel() -> None:
    config = autotune(op.depthwise_conv2d, shapes=[(1, 16, 30, 30), (16, 1, 3, 3)], budget_s=2.0)
    assert config.schedule.keys() >= {"tile", "rows", "vectorize", "pipeline_depth"}


def test_a_session_counts_two_operations_a_tap_and_the_operands() -> None:
    x, weight = normal(1, 4, 20, 20), normal(4, 3, 3)
    with profile.session() as session:
        op.depthwise_conv2d(x, weight, padding=1).eval()
    (record,) = session.records()
    assert record.operator == "depthwise_conv2d"
    assert record.flops == 2 * 9 * x.numel()
    assert record.bytes == 4 * (2 * x.numel() + weight.numel())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("stride", "padding", "multiplier"), [(1, 1, 1), (2, 0, 2), (2, 3, 1)])
def test_gradients_are_torchs(layout: Layout, stride: int, padding: int, multiplier: int) -> None:
    x, weight = normal(2, 3, 8, 9).double().requires_grad_(), normal(3 * multiplier, 1, 3, 2).double().requires_grad_()
    expected = functional.conv2d(x, weight, stride=stride, padding=padding, groups=3)
    wanted = torch.autograd.grad(expected.sin().sum(), (x, weight))
    inputs = [op.tensor(arranged(x.detach(), layout)), op.tensor(weight.detach()[:, 0])]
    result = op.depthwise_conv2d(*inputs, stride=stride, padding=padding, layout=layout)
    found = grad.vjp(result, inputs, arranged(expected.detach().cos(), layout))
    close(found[0], arranged(wanted[0], layout), 1e-10)
    close(found[1], wanted[1][:, 0], 1e-10)


# -- pools ------------------------------------------------------------------------------------------------------------

POOLS = st.tuples(
    st.sampled_from(("NCHW", "NHWC")),
    st.tuples(st.integers(1, 2), st.sampled_from((1, 5, 33)), st.integers(4, 30), st.integers(4, 30)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from((None, 1, 2, (3, 2))),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=examples(6, 12))
@given(POOLS, st.integers(1, 2))
def test_max_pool_is_torchs(drawn: Any, dilation: int) -> None:
    layout, shape, kernel, stride, pads, ceil_mode = drawn
    padding = tuple(size // 2 for size in kernel) if pads else 0
    x = normal(*shape)
    x[:, :, ::3, ::5] = math.nan
    x[:, :, 1::4, 1::3] = -math.inf
    if any((size - 1) * dilation + 1 > extent for size, extent in zip(kernel, shape[2:], strict=True)):
        return
    expected = functional.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    result = op.max_pool2d(arranged(x, layout), kernel, stride, padding, dilation, ceil_mode, layout=layout).torch()
    assert torch.equal(planes(result, layout).nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))


@settings(max_examples=examples(6, 12))
@given(POOLS, st.booleans(), st.sampled_from((None, None, 7)))
def test_avg_pool_is_torchs(drawn: Any, count_include_pad: bool, divisor: int | None) -> None:
    layout, shape, kernel, stride, pads, ceil_mode = drawn
    padding = tuple(size // 2 for size in kernel) if pads else 0
    x = normal(*shape)
    options = (kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    result = op.avg_pool2d(arranged(x, layout), *options, layout=layout)
    expected = functional.avg_pool2d(x.double(), *options)
    close(result, arranged(expected, layout), 1e-5)
    assert len(choices_of(result.structure)) == 1


def test_gradients_of_pools() -> None:
    x = normal(1, 2, 7, 9).double().requires_grad_()
    expected = functional.avg_pool2d(x, 3, 2, 1)
    (wanted,) = torch.autograd.grad(expected.sum(), (x,))
    image = op.tensor(x.detach())
    (found,) = grad.vjp(op.avg_pool2d(image, 3, 2, 1), [image])
    close(found, wanted, 1e-12)


# -- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_is_torchs(axis: int, dtype: torch.dtype) -> None:
    x, mean, var = normal(3, 7, 5, 9).to(dtype), normal(7), normal(7, seed=1).abs()
    gain, offset = normal(7, seed=2), normal(7, seed=3)
    both: tuple[tuple[torch.Tensor | None, torch.Tensor | None], ...]
    both = ((None, None), (gain, None), (None, offset), (gain, offset))
    for parameters in both:
        image = x if axis == 1 else x.permute(0, 2, 3, 1)
        result = op.batch_norm(image, mean, var, weight=parameters[0], bias=parameters[1], axis=axis)
        wide = [None if each is None else each.double() for each in parameters]
        expected = functional.batch_norm(x.double(), mean.double(), var.double(), weight=wide[0], bias=wide[1])
        close(result, expected if axis == 1 else expected.permute(0, 2, 3, 1), 8 * torch.finfo(dtype).eps)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "weight", "options", "message"),
    [
        ((1, 4, 9, 9), (3, 1, 3, 3), {}, "a weight for 3 channels does not fit 4 channels"),
        ((1, 4, 9, 9), (4, 2, 3, 3), {}, r"the weight is \[C \* m, 1, KH, KW\]"),
        ((4, 9, 9), (4, 1, 3, 3), {}, r"images are \[N, C, H, W\]"),
        ((1, 4, 2, 9), (4, 1, 3, 3), {}, "the window reaches over 3 pixels, the padded image has 2"),
        ((1, 4, 4, 9), (4, 1, 3, 3), {"dilation": 2}, "the window reaches over 5 pixels, the padded image has 4"),
        ((1, 0, 4, 9), (4, 1, 3, 3), {}, "does not fit 0 channels"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_at_the_call(
    x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeMismatchError, match=message):
        op.depthwise_conv2d(normal(*x), normal(*weight), **options)


def test_geometry_that_is_none_is_refused_at_the_call() -> None:
    x, weight = normal(1, 4, 9, 9), normal(4, 1, 3, 3)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"stride": 0}, "stride=0"),
        ({"stride": (1, 2, 3)}, r"stride=\(1, 2, 3\)"),
        ({"padding": -1}, "padding=-1"),
        ({"dilation": 0}, "dilation=0"),
        ({"padding": "same"}, "padding='same'"),
        ({"layout": "CHWN"}, "layout='CHWN'"),
    ]
    for options, message in refused:
        with pytest.raises(ArgumentError, match=message):
            op.depthwise_conv2d(x, weight, **options)
    with pytest.raises(ArgumentError, match="padding=2 is more than half of kernel_size=3"):
        op.max_pool2d(x, 3, padding=2)
    with pytest.raises(ArgumentError, match="divisor_override=0"):
        op.avg_pool2d(x, 3, divisor_override=0)
    with pytest.raises(ArgumentError, match="kernel_size=0"):
        op.avg_pool2d(x, 0)
    with pytest.raises(ShapeMismatchError, match="the window reaches over 10 pixels, the padded image has 9"):
        op.max_pool2d(x, 10)
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.depthwise_conv2d(x, weight.double())
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.max_pool2d(x.int(), 3)
    with pytest.raises(ShapeMismatchError, match=r"bias of shape \(3,\) for 4 output channels"):
        op.depthwise_conv2d(x, weight, normal(3))
    with pytest.raises(DTypeError, match="depthwise_conv2d: a bias of fp64 for results of fp32"):
        op.depthwise_conv2d(x, weight, normal(4).double())
    with pytest.raises(ShapeMismatchError, match="statistics of shapes"):
        op.batch_norm(x, normal(3), normal(4))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_memory_short_is_an_error_before_anything_is_written(layout: Layout) -> None:
    x, weight = arranged(normal(1, 16, 40, 40), layout), normal(16, 1, 3, 3)
    out = torch.full(tuple(x.shape), 7.0)
    with tessera.settings.override(memory_limit_bytes=1 << 12), pytest.raises(MemoryLimitError):
        op.softmax(op.exp(op.depthwise_conv2d(x, weight, padding=1, layout=layout)), -1).eval(out)
    assert (out == 7.0).all()


def test_devices_without_such_kernels_are_named() -> None:
    x = op.tensor(normal(1, 4, 9, 9), device="interpreter")
    with pytest.raises(
        DeviceError, match="max_pool2d on interpreter: reductions over windows have no kernels for GPUs"
    ):
        op.max_pool2d(x, 3)
    with pytest.raises(DeviceError, match="depthwise_conv2d on interpreter"):
        op.depthwise_conv2d(x, op.tensor(normal(4, 3, 3), device="interpreter"))


# -- memory formats ---------------------------------------------------------------------------------------------------


def test_channels_last_images_are_read_in_place_and_stay_so() -> None:
    x, weight, bias = normal(2, 24, 17, 19), normal(24, 1, 3, 3), normal(24)
    last = x.to(memory_format=torch.channels_last)
    result = op.relu(op.depthwise_conv2d(last, weight, bias, padding=1))
    names = [choice.subject.item.name for choice in choices_of(result.structure)]
    assert sum("depthwise" in name for name in names) == 1
    assert choices_of(result.structure)[-1].subject.pattern.lanes == "c"
    expected = functional.conv2d(x.double(), weight.double(), bias.double(), padding=1, groups=24).relu()
    close(result, expected)
    assert result.torch().is_contiguous(memory_format=torch.channels_last)
    pooled = op.max_pool2d(last, 3, 2, 1).torch()
    assert torch.equal(pooled, functional.max_pool2d(x, 3, 2, 1))
    assert pooled.is_contiguous(memory_format=torch.channels_last)


def test_what_follows_a_convolution_keeps_its_channels_last() -> None:
    x = normal(1, 8, 15, 14)
    convolved = op.relu(op.conv2d(x, normal(16, 8, 3, 3), padding=1))
    result = op.depthwise_conv2d(convolved, normal(16, 1, 3, 3), padding=1)
    assert choices_of(result.structure)[-1].subject.pattern.lanes == "c"
    close(result, oracle.reference(result))


@pytest.mark.parametrize("keepdims", [False, True])
def test_global_pools_have_channels_along_lanes_where_these_lie_side_by_side(keepdims: bool) -> None:
    x = normal(2, 37, 9, 11)
    for image in (x, x.to(memory_format=torch.channels_last), x[:, ::2]):
        result = op.mean(image, axis=(2, 3), keepdims=keepdims)
        (choice,) = choices_of(result.structure)
        by_rows = choice.subject.pattern.reduced == "c"
        assert by_rows == (image.stride(1) != 1)
        close(result, image.double().mean((2, 3), keepdim=keepdims), 1e-6)
