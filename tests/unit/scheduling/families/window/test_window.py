"""Windows over images on CPUs: under any schedule the lowered kernel computes what the record's reference does."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, accumulator, bf16, fp32
from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.verification import verify
from tessera.ops import OPERATORS
from tessera.scheduling.families.common_rules import leaves_caches
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.window.lowering import lower_window
from tessera.scheduling.families.window.space import RULES, default_schedule, space, window_problem
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Argument, Geometry, Output, WindowSpec
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX2, AVX512, ZEN4_CORE
from tests.whole import examples

LANES = 4
"""Elements of a vector, so that small images have several."""
PLAIN = Geometry((3, 3), (1, 1), (1, 1), (1, 1))


class _Windows(Recorder):
    """Reductions go over the window."""

    def reduce(self, kind: str, a: Value) -> Value:
        return self.make("reduce", (a,), (kind,), a.dtype, a.axes - {"ky", "kx"}, a.stage + 1)


def spec_of(name: str, dtype: DType, geometry: Geometry, lanes: str = "x") -> WindowSpec:
    """A reduction of one operator over images [o0, h, w] or [o0, h, w, c]; what it makes is negated afterwards."""
    recorder, channels = _Windows(None), ("c",) if lanes == "c" else ()
    walked, unit = ("o0", "h", "w", *channels), "c" if channels else "w"
    image = Argument(dtype, walked, tuple(1 if axis == unit else None for axis in walked))
    own = ("ky", "kx", "c") if channels else ("o0", "ky", "kx")
    taps = Argument(dtype, own, tuple(1 if axis == "c" else None for axis in own))
    axes = ("o0", "y", "x", *channels)
    result = Argument(dtype, axes, tuple(1 if axis == lanes else None for axis in axes))
    wide = accumulator(dtype)
    x = recorder.cast(recorder.load(0, dtype, {"o0", "y", "x", "ky", "kx", *channels}), wide)
    operands, arguments = [x], [image]
    if name == "depthwise_conv2d":
        operands.append(recorder.cast(recorder.load(1, dtype, own), wide))
        arguments.append(taps)
    value = recorder.neg(OPERATORS[name].body(recorder, *operands))
    outputs = (Output(len(arguments), recorder.cast(value, dtype)),)
    outer = ("o0",) if lanes == "x" else ("o0", "y")
    return WindowSpec(name, (*arguments, result), outer, lanes, geometry, outputs)


def schedule_of(**changes: Any) -> Schedule:
    plain = Schedule(
        tile=(4, 8),
        rows=2,
        columns=1,
        vectorize=1,
        buffering="direct",
        pipeline_depth=1,
        nontemporal=False,
        parallel="outer",
        fusion=True,
    )
    return plain.replace(**changes)


def check(spec: WindowSpec, schedule: Schedule, images: int, height: int, width: int, channels: int, seed: int) -> None:
    """The interpreter's result in poisoned memory against the record's reference in float64."""
    module = lower_window(spec, schedule, LANES)
    verify(module)
    geometry, dtype = spec.geometry, spec.arguments[0].dtype.torch
    generator = torch.Generator().manual_seed(seed)
    by_channel = spec.lanes == "c"
    # Planes are images of one channel, with taps of their own.
    x = torch.randn(images, channels, height, width, generator=generator).to(dtype)
    taps = torch.randn(channels if by_channel else images, *geometry.kernel, generator=generator).to(dtype)
    top, left = geometry.padding
    attributes = {
        "kernel": geometry.kernel,
        "stride": geometry.stride,
        "padding": (top, top, left, left),
        "dilation": geometry.dilation,
        "layout": "NCHW",
    }
    reference = OPERATORS[spec.name].reference
    weights = [taps] if spec.name == "depthwise_conv2d" else []
    planes = x.double() if by_channel else x.double().transpose(0, 1)
    named = {**attributes, "multiplier": 1} if weights else attributes
    expected = -reference(planes, *[weight.double() for weight in weights], **named)
    expected = expected.permute(0, 2, 3, 1) if by_channel else expected[0]
    stored = x.permute(0, 2, 3, 1).contiguous() if by_channel else x[:, 0]
    out = torch.full(expected.shape, float("nan"), dtype=dtype)
    operands = [weight.permute(1, 2, 0).contiguous() if by_channel else weight for weight in weights]
    run_kernel(module, [stored, *operands, out], partition=random.Random(seed))
    specs.close(out, expected, 9.0)


@settings(max_examples=examples(10, 20))
@given(
    st.sampled_from(("depthwise_conv2d", "max_pool2d", "sum_pool2d")),
    st.sampled_from(("x", "c")),
    st.tuples(st.integers(1, 2), st.integers(5, 11), st.integers(5, 13)),
    st.builds(
        Geometry,
        kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
        padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
        dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ),
    st.tuples(st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4))),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 3)),
    st.sampled_from(("direct", "rows")),
    st.sampled_from(("outer", "rows")),
)
def test_any_schedule_gives_the_reference(
    name: str,
    lanes: str,
    shape: tuple[int, int, int],
    geometry: Geometry,
    held: tuple[int, int],
    vectorize: int,
    depth: int,
    buffering: str,
    parallel: str,
) -> None:
    rows, columns = held
    schedule = schedule_of(rows=rows, vectorize=vectorize, pipeline_depth=depth, parallel=parallel)
    if lanes == "c":
        schedule = schedule.replace(columns=columns, buffering=buffering)
    check(spec_of(name, fp32, geometry, lanes), schedule, *shape, channels=13 if lanes == "c" else 1, seed=rows)


def test_narrow_elements_are_summed_in_fp32() -> None:
    for lanes in ("x", "c"):
        check(spec_of("depthwise_conv2d", bf16, PLAIN, lanes), schedule_of(), 2, 6, 9, 3 if lanes == "c" else 1, 1)
    ring = schedule_of(buffering="rows", columns=2)
    check(spec_of("depthwise_conv2d", bf16, PLAIN, "c"), ring, 2, 6, 9, 11, 1)


@pytest.mark.parametrize("buffering", ["direct", "rows"])
@pytest.mark.parametrize("geometry", [((2, 2), (3, 3), (0, 0)), ((3, 3), (1, 1), (5, 7)), ((1, 1), (2, 1), (1, 2))])
def test_windows_that_skip_pixels_or_lie_in_the_padding_alone(buffering: str, geometry: Any) -> None:
    kernel, stride, padding = geometry
    posed = spec_of("depthwise_conv2d", fp32, Geometry(kernel, stride, padding, (1, 1)), "c")
    check(posed, schedule_of(columns=4, buffering=buffering), 2, 7, 6, 9, 3)


def test_the_kernel_survives_its_text() -> None:
    module = lower_window(
        spec_of("depthwise_conv2d", fp32, Geometry((3, 3), (2, 2), (1, 1), (1, 1))), schedule_of(), LANES
    )
    assert print_module(parse(print_module(module))) == print_module(module)


def test_a_kernel_has_one_operand_behind_its_window() -> None:
    recorder = _Windows(None)
    axes = {"o0", "y", "x", "ky", "kx"}
    both = recorder.add(recorder.load(0, fp32, axes), recorder.load(1, fp32, axes))
    argument = Argument(fp32, ("o0", "h", "w"), (None, None, 1))
    result = Argument(fp32, ("o0", "y", "x"), (None, None, 1))
    outputs = (Output(2, recorder.reduce("add", both)),)
    spec = WindowSpec("two", (argument, argument, result), ("o0",), "x", PLAIN, outputs)
    with pytest.raises(CompileError, match="2 operands are read through its window, not one"):
        lower_window(spec, schedule_of(), LANES)


def problem(lanes: str = "x", height: int = 112, width: int = 112, channels: int = 256, **changes: Any) -> Any:
    """A depthwise convolution on a machine with AVX-512, two workers."""
    extents = {"o0": channels if lanes == "x" else 1, "y": height, "x": width, "c": channels, "h": height, "w": width}
    target = changes.pop("target", AVX512)
    spec = spec_of("depthwise_conv2d", fp32, changes.pop("geometry", PLAIN), lanes)
    return window_problem(spec, target, {**extents, "ky": 3, "kx": 3}, changes.pop("workers", 2))


def test_defaults_are_legal() -> None:
    for target in (AVX2, AVX512):
        for lanes in ("x", "c"):
            for extents in ((1, 1, 1), (7, 7, 3), (28, 28, 512), (5, 2000, 1), (1000, 3, 64)):
                posed = problem(lanes, *extents, target=target)
                assert space(posed).violations(default_schedule(posed)) == ()


def test_rules_name_what_is_wrong() -> None:
    posed = space(problem())
    start = posed.default
    broken: dict[str, dict[str, Any]] = {
        "vector-registers": {"rows": 8, "vectorize": 4},
        "whole-vectors": {"tile": (64, 40)},
        "rows-within-block": {"tile": (1, 64)},
        "channels-along-vectors": {"columns": 2},
        "ring-fits-cache": {"buffering": "rows", "tile": (128, 1024)},
        "tile-within-problem": {"tile": (1024, 64)},
        "streaming-needs-size": {"nontemporal": True},
    }
    for rule, change in broken.items():
        narrow = space(problem(channels=4)) if rule == "streaming-needs-size" else posed
        assert rule in narrow.violations(start.replace(**change)), rule
    assert "one-worker" in space(problem(workers=1)).violations(start.replace(parallel="rows"))
    assert {rule.name for rule in RULES} == {*broken, "one-worker"}


def test_channels_last_are_read_in_place_where_windows_lie_inside_and_else_from_a_ring() -> None:
    wide, small = (
        default_schedule(problem("c", side, side, channels, workers=1)) for side, channels in ((112, 256), (28, 512))
    )
    assert wide["buffering"] == "direct"
    assert small["buffering"] == "rows"
    large = Geometry((7, 7), (1, 1), (3, 3), (1, 1))
    assert default_schedule(problem("c", geometry=large, workers=1))["buffering"] == "rows"  # 49 taps are no registers
    assert wide["nontemporal"] is True  # 26 MB of image and result
    assert default_schedule(problem("c", 56, 56, 64))["nontemporal"] is False


def test_channels_last_are_written_by_whole_lines_past_the_caches_or_through_them() -> None:
    narrow = problem("c", 112, 112, 256, workers=1, target=AVX2)  # whose vectors are half a line
    assert leaves_caches(narrow)
    schedule = default_schedule(narrow)
    assert (schedule["nontemporal"], schedule["tile"], schedule["vectorize"]) == (False, (56, 16), 1)


def test_channels_first_have_as_many_rows_at_a_time_as_registers_hold_beside_nine_taps() -> None:
    steps = dataclasses.replace(PLAIN, stride=(2, 2))

    def chosen(target: Any, geometry: Any) -> tuple[Any, Any]:
        schedule = default_schedule(problem("x", 112, 112, 256, target=target, geometry=geometry))
        return schedule["rows"], schedule["pipeline_depth"]

    assert chosen(AVX2, PLAIN) == (1, 1)
    assert chosen(AVX2, steps) == (1, 3), "and fetches the rows that follow"
    assert chosen(AVX512, PLAIN) == (2, 1)
    assert chosen(AVX512, steps) == (4, 1)


def test_the_model_ranks_both_forms_as_they_were_measured() -> None:
    """Zen 4: 3 x 3 at 112 x 112 in place, everything at 28 x 28 from a ring."""
    zen4 = dataclasses.replace(AVX512, core=ZEN4_CORE)
    model = RooflineModel(None, zen4)
    for side, channels, direct in ((112, 256, True), (28, 512, False)):
        posed = problem("c", side, side, channels, workers=1, target=zen4)
        ring = Schedule(tile=(28, 16), rows=2, columns=4, vectorize=1, buffering="rows", pipeline_depth=2)
        in_place = Schedule(tile=(64, 256), rows=4, columns=4, vectorize=1, buffering="direct", pipeline_depth=3)
        both = [each.replace(nontemporal=True, parallel="outer", fusion=True) for each in (in_place, ring)]
        seconds = [model.estimate(posed, each).seconds for each in both]
        assert (seconds[0] < seconds[1]) == direct


def test_short_runs_of_channels_are_waited_for_where_they_are_read_in_place() -> None:
    model = RooflineModel(None, dataclasses.replace(AVX512, core=ZEN4_CORE))
    posed = problem("c", 56, 56, 256, workers=1, target=model.target)

    def cost(**changes: Any) -> Any:
        plain = Schedule(tile=(56, 16), rows=2, columns=2, vectorize=1, buffering="direct", pipeline_depth=2)
        return model.estimate(posed, plain.replace(nontemporal=False, parallel="outer", fusion=True, **changes))

    waits = [cost(tile=(56, lanes)).terms["latency"] for lanes in (16, 32, 64, 256)]
    assert waits[0] == pytest.approx(2 * waits[1]) == pytest.approx(4 * waits[2])
    assert waits[3] == 0.0
    assert cost(buffering="rows").terms["latency"] == 0.0
    # Blocks of 8 columns hold no whole number of tiles of 7: one more is computed in each.
    assert (
        cost(tile=(8, 64), columns=7, buffering="rows").seconds
        > 1.2 * cost(tile=(56, 64), columns=7, buffering="rows").seconds
    )


def test_the_problem_knows_its_traffic() -> None:
    posed = problem()
    assert posed.image_bytes == posed.bytes_out == 4 * 256 * 112 * 112
    assert posed.bytes_in == posed.image_bytes + 4 * 256 * 9
    assert (posed.taps, posed.operations, posed.free, posed.images) == (9, 1, 1, 256)
