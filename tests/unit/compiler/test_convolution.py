"""`op.conv2d` end to end on CPUs, against torch in float64 and against the interpreter of Tile IR."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tessera
from tessera import autotune, numerics, op
from tessera.compiler.device import compilers
from tessera.compiler.explain.inspection import choices_of, schedules_of
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError, MemoryLimitError, ShapeMismatchError, UnsupportedTargetError
from tessera.handle import Tensor
from tessera.ops import oracle
from tessera.scheduling.families.convolution.problem import ConvolutionProblem
from tessera.scheduling.families.convolution.space import space
from tessera.typing import ArrayLike
from tests.threads import torch_threads
from tests.unit.compiler.interpreting import interpreted
from tests.whole import examples, some

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def expected(x: torch.Tensor, w: torch.Tensor, **settings: Any) -> torch.Tensor:
    return torch.nn.functional.conv2d(x.double(), w.double(), **settings)


def close(result: torch.Tensor, wanted: torch.Tensor, terms: int = 1) -> None:
    bound = 4 * torch.finfo(result.dtype).eps * math.sqrt(terms + 1)
    torch.testing.assert_close(result.double(), wanted, rtol=bound, atol=bound * math.sqrt(terms))


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 4), "dilation": (1, 2)},
    {"padding": "same", "dilation": 2},
    {"padding": "valid"},
    {"groups": 3, "padding": 6},
)


@pytest.mark.parametrize(("settings", "dtype"), some(product(SETTINGS, FLOATS), lambda case: str(case[0])))
def test_settings_mean_what_they_mean_in_torch(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    groups = settings.get("groups", 1)
    x, w = normal(2, 9, 8, 11, dtype=dtype), normal(36, 9 // groups, 3, 3, dtype=dtype)
    wanted = expected(x, w, **settings)
    close(op.conv2d(x, w, **settings).torch(), wanted, w[0].numel())
    last = op.conv2d(x.permute(0, 2, 3, 1), op.constant(w), layout="NHWC", **settings)
    close(last.torch().permute(0, 3, 1, 2), wanted, w[0].numel())


@settings(max_examples=examples(4, 8), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_interpreter_and_machine_code_agree_with_float64(data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16)))
    groups, depth, outputs = draw(st.sampled_from((1, 1, 2))), draw(st.integers(1, 5)), draw(st.integers(1, 20))
    window = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    given_ = {
        "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "padding": padding,
        "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        "groups": groups,
    }
    x = normal(draw(st.integers(1, 2)), groups * depth, draw(st.integers(5, 9)), draw(st.integers(5, 9)), dtype=dtype)
    w = normal(groups * outputs, depth, *window, dtype=dtype)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    # The interpreter runs one kernel: others that pack weights are looked at below.
    pending = op.relu(op.conv2d(x, op.constant(w), **given_))  # type: ignore[arg-type]
    wanted = expected(x, w, **given_).relu()
    result = interpreted(pending, draw(st.integers(0, 9)))
    close(result, wanted, w[0].numel())
    close(pending.torch(), wanted, w[0].numel())


def test_channels_last_images_are_read_in_place_under_either_name() -> None:
    x = normal(2, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    w = normal(8, 16, 3, 3)
    result = op.conv2d(x, op.constant(w), padding=1)
    assert len(choices_of(result.structure)) == 1
    assert result.torch().is_contiguous(memory_format=torch.channels_last)
    close(result.torch(), expected(x, w, padding=1), 144)


def test_what_follows_a_convolution_runs_on_its_register_tile() -> None:
    x, w, b = normal(1, 6, 9, 8), normal(10, 6, 3, 3), normal(10)
    scale, shift, residual = normal(10, 1, 1, seed=1), normal(1, 10, 1, 1, seed=2), normal(1, 10, 9, 8)
    result = op.relu(op.conv2d(x, op.constant(w), b, padding=1) * scale + shift + residual)
    assert len(choices_of(result.structure)) == 1
    wanted = expected(x, w, bias=b.double(), padding=1) * scale + shift + residual
    close(result.torch(), wanted.relu(), 54)


def test_a_network_with_channels_first_runs_with_channels_last_inside() -> None:
    x, first, second = normal(1, 3, 12, 12), normal(8, 3, 3, 3), normal(4, 8, 1, 1)
    hidden = op.relu(op.conv2d(x, first, padding=1))
    result = op.conv2d(hidden, second) + op.conv2d(hidden, second * 0.5)
    names = [choice.subject.item.family for choice in choices_of(result.structure)]
    assert names.count("convolution") == 3
    inner = torch.relu(expected(x, first, padding=1))
    close(result.torch(), expected(inner.float(), 1.5 * second), 64)


def test_what_comes_before_is_computed_while_pixels_are_copied_and_padding_stays_zero() -> None:
    x, w = normal(2, 5, 7, 6), normal(9, 5, 3, 3)
    result = op.conv2d(op.tensor(x).transpose(0, 2, 3, 1) + 3.0, op.constant(w), padding=2, layout="NHWC")
    assert len(choices_of(result.structure)) == 1
    close(result.torch().permute(0, 3, 1, 2), expected(x + 3.0, w, padding=2), 200)


def test_a_group_for_each_channel_is_a_reduction_over_windows() -> None:
    x, w, b = normal(2, 6, 9, 8), normal(12, 1, 3, 3), normal(12)
    for layout in ("NCHW", "NHWC"):
        image = x if layout == "NCHW" else x.permute(0, 2, 3, 1)
        result = op.conv2d(image, w, b, stride=2, padding=1, groups=6, layout=layout)
        assert "window" in {choice.subject.item.family for choice in choices_of(result.structure)}
        wanted = expected(x, w, bias=b.double(), stride=2, padding=1, groups=6)
        close(result.torch() if layout == "NCHW" else result.torch().permute(0, 3, 1, 2), wanted, 9)
    even = normal(6, 1, 2, 2)
    close(op.conv2d(x, even, padding="same", groups=6).torch(), expected(x, even, padding="same", groups=6), 4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("last", [False, True])
def test_weights_that_are_no_constant_are_packed_by_kernels(dtype: torch.dtype, last: bool) -> None:
    for outputs, depth, window, groups in (
        (33, 5, (3, 2), 1),
        (64, 4, (1, 1), 2),
        (1, 1, (2, 1), 1),
        (40, 8, (3, 3), 2),
    ):
        x, w = normal(2, depth * groups, 7, 6, dtype=dtype), normal(outputs * groups, depth, *window, dtype=dtype)
        if last:
            w = w.contiguous(memory_format=torch.channels_last)
        wanted = expected(x, w, groups=groups)
        close(op.conv2d(x, w, groups=groups).torch(), wanted, depth * 9)
        whole = torch.full((w.shape[0], 2 * depth, *window), float("nan"), dtype=dtype)
        whole[:, 1::2] = w  # a view whose neighbours would show
        close(op.conv2d(x, whole[:, 1::2], groups=groups).torch(), wanted, depth * 9)
        w.mul_(2)
        close(op.conv2d(x, w, groups=groups).torch(), 2 * wanted, depth * 9)


def test_weights_that_are_computed_are_packed_on_the_way() -> None:
    for dtype, depth in ((torch.float32, 5), (torch.bfloat16, 5)):
        x, w = normal(2, depth, 7, 6, dtype=dtype), normal(33, depth, 3, 2, dtype=dtype)
        result = op.conv2d(x, op.tensor(w) * 2.0)
        close(result.torch(), expected(x, 2 * w), 30)


def test_a_constant_weight_that_is_changed_in_place_is_packed_again() -> None:
    x, w = normal(1, 4, 6, 6), normal(8, 4, 3, 3)
    kept = op.constant(w)
    before = op.conv2d(x, kept).torch()
    w.mul_(2.0)
    close(op.conv2d(x, kept).torch(), 2 * before.double(), 36)


def test_any_strides_of_weights_are_read() -> None:
    x, stored = normal(1, 6, 7, 7), normal(3, 2, 6, 10)  # [KH, KW, C, C_out]
    w = stored.permute(3, 2, 0, 1)
    close(op.conv2d(x, w).torch(), expected(x, w), 36)
    close(op.conv2d(x, op.constant(stored).transpose(3, 2, 0, 1)).torch(), expected(x, w), 36)


def test_nan_and_infinity_stay_where_the_window_sees_them() -> None:
    x, w = normal(1, 3, 9, 9), normal(5, 3, 3, 3).abs() + 0.1
    x[0, 1, 4, 4], x[0, 2, 0, 0] = math.nan, math.inf
    result = op.conv2d(x, w, padding=1).torch()
    assert torch.equal(result.isnan(), expected(x, w, padding=1).isnan())
    assert torch.equal(result.isinf(), expected(x, w, padding=1).isinf())


def test_nothing_gives_nothing() -> None:
    w = normal(4, 3, 3, 3)
    assert op.conv2d(normal(0, 3, 5, 5), w).torch().shape == (0, 4, 3, 3)
    assert (op.conv2d(normal(1, 0, 5, 5), normal(4, 0, 3, 3)).torch() == 0).all()
    assert op.conv2d(normal(1, 3, 5, 5), normal(0, 3, 3, 3)).torch().shape == (1, 0, 3, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 0}, "stride"),
        ({"stride": (1, 2, 3)}, "stride"),
        ({"stride": 1.5}, "stride=1.5"),
        ({"padding": -1}, "padding"),
        ({"padding": "reflect"}, "padding"),
        ({"padding": "same", "stride": 2}, "stride"),
        ({"dilation": 0}, "dilation"),
        ({"groups": 0}, "groups"),
        ({"layout": "CHWN"}, "layout"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        op.conv2d(normal(1, 3, 8, 8), normal(4, 3, 3, 3), **settings)


@pytest.mark.parametrize(
    ("image", "weights", "settings", "message"),
    [
        ((1, 3, 8), (4, 3, 3, 3), {}, "four dimensions"),
        ((1, 3, 8, 8), (4, 3, 3), {}, "four dimensions"),
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "3 channels"),
        ((1, 4, 8, 8), (5, 2, 3, 3), {"groups": 2}, "do not divide"),
        ((1, 3, 8, 8), (4, 3, 9, 3), {}, "reaches over 9 pixels"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"dilation": 6, "padding": 2}, "reaches over 13 pixels"),
        ((1, 3, 8, 8), (4, 3, 0, 3), {}, "no elements"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    image: tuple[int, ...], weights: tuple[int, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeMismatchError, match=message):
        op.conv2d(torch.zeros(image), torch.zeros(weights), **settings)


@pytest.mark.parametrize("convolution", [op.conv2d, op.spectral_conv, op.depthwise_conv2d])
def test_a_bias_is_one_number_a_channel_in_the_results_dtype(convolution: Any) -> None:
    x, w = normal(1, 3, 8, 8), normal(3, 1 if convolution is op.depthwise_conv2d else 3, 3, 3)
    with pytest.raises(ShapeMismatchError, match=r"a bias of shape \(4,\) for 3 output channels"):
        convolution(x, w, torch.ones(4))
    with pytest.raises(DTypeError, match="a bias of fp64 for results of fp32"):
        convolution(x, w, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("convolution", [op.conv2d, op.depthwise_conv2d])
def test_a_single_image_is_told_how_it_becomes_a_batch(convolution: Any) -> None:
    with pytest.raises(ShapeMismatchError) as caught:
        convolution(normal(3, 8, 8), normal(3, 1, 3, 3))
    assert "x[None]" in str(caught.value)


def test_dtypes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.conv2d(normal(1, 3, 8, 8), normal(4, 3, 3, 3, dtype=torch.bfloat16))
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.conv2d(torch.ones(1, 3, 8, 8, dtype=torch.int32), torch.ones(4, 3, 3, 3, dtype=torch.int32))


def test_gpus_have_no_kernel_yet_and_say_so() -> None:
    x, w = (op.tensor(t, device="interpreter") for t in (normal(1, 3, 8, 8), normal(4, 3, 3, 3)))
    with pytest.raises(UnsupportedTargetError, match="convolutions have no kernel for GPUs"):
        op.conv2d(x, w).torch()


# -- schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_legal_schedule_computes_the_same(dtype: torch.dtype) -> None:
    x, w = normal(1, 6, 7, 5, dtype=dtype), normal(20, 5, 3, 2, dtype=dtype)

    def convolved() -> Tensor:
        return op.conv2d(x, op.constant(w), layout="NHWC")

    pending = convolved()
    (choice,) = choices_of(pending.structure)
    *_, launch = launches_of_operator(
        lambda a, b: op.conv2d(a, b, layout="NHWC"), [tuple(x.shape), tuple(w.shape)], str(pending.dtype)
    )
    problem = launch.subject.problem(launch.call.shaped.extents, 2)
    assert isinstance(problem, ConvolutionProblem)
    assert space(problem).violations(choice.schedule) == ()
    draw, wanted = random.Random(3), oracle.reference(pending)
    for number in range(4):
        schedule = space(problem).draw(draw).replace(pack_a=number % 2 == 0, merge=number % 3 == 0 and number % 2 == 0)
        if space(problem).violations(schedule):
            continue
        pinned = convolved().pin(**schedule)
        assert schedules_of(pinned.structure) == [schedule]
        close(interpreted(pinned), wanted, 30)
        close(pinned.torch(), wanted, 30)


def test_defaults_are_legal_and_share_the_work() -> None:
    layers = [(1, 3, 224, 64, 7, 2, 3), (1, 512, 7, 512, 3, 1, 1), (8, 256, 14, 1024, 1, 1, 0)]
    for images, depth, size, outputs, window, stride, padding in layers:
        shapes: list[tuple[int, ...]] = [(images, size, size, depth), (outputs, depth, window, window)]

        def convolved(x: ArrayLike, w: ArrayLike, stride: int = stride, padding: int = padding) -> Tensor:
            return op.conv2d(x, w, stride=stride, padding=padding, layout="NHWC")

        *_, launch = launches_of_operator(convolved, shapes, "bf16")
        for workers in (1, 2, 7):
            problem = launch.subject.problem(launch.call.shaped.extents, workers)
            assert isinstance(problem, ConvolutionProblem)
            assert space(problem).violations(space(problem).default) == ()


def test_it_is_tuned_like_any_other_kernel() -> None:
    config = autotune(
        lambda x, w: op.conv2d(x, w, padding=1, layout="NHWC"), shapes=[(1, 20, 20, 5), (40, 5, 3, 3)], budget_s=2.0
    )
    assert config.schedule.keys() >= {"tile", "micro", "pack_a", "parallel"}


def test_a_fixed_order_of_sums_gives_the_same_bits_with_any_number_of_workers() -> None:
    x, w = normal(2, 32, 30, 30), normal(64, 32, 3, 3)
    results = []
    with numerics.policy("deterministic"):
        for threads in (1, 2):
            with torch_threads(threads):
                results.append(op.conv2d(x, w, padding=1).torch())
    assert torch.equal(*results)


def test_other_sizes_of_image_take_the_same_code() -> None:
    w = normal(8, 6, 1, 1)
    results = [op.conv2d(normal(1, 6, size, size), w) for size in (20, 21)]
    compiler = compilers.kernel_compiler()
    codes = {compiler.planner.kernel(choices_of(result.structure)[0]).code for result in results}
    assert len(codes) == 1


def test_memory_short_is_an_error_before_anything_is_written() -> None:
    out = torch.full((1, 8, 64, 64), 7.0)
    x, w = normal(1, 4, 64, 64), normal(8, 4, 3, 3)
    with tessera.settings.override(memory_limit_bytes=1 << 12), pytest.raises(MemoryLimitError):
        op.exp(op.softmax(op.conv2d(x, w, padding=1), 1)).eval(out)
    assert (out == 7.0).all()
