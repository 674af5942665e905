"""Convolutions on a CPU's matrix unit: whatever legal schedule is drawn, the kernel computes what torch does in float64
on the interpreter, assembles for such a CPU, and does the same on the unit where this machine has one.
"""

from __future__ import annotations

import math
import platform
import random
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera import numerics, op
from tessera.backend.llvm import LLVMBackend
from tessera.dtypes import bf16, fp32
from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.families.convolution.blocks import packed_depth, unit_step
from tessera.scheduling.families.convolution.lowering import lower_convolution
from tessera.scheduling.families.convolution.problem import ConvolutionProblem, convolution_problem
from tessera.scheduling.families.convolution.space import default_schedule, space
from tessera.scheduling.families.convolution.weights import WeightPanels
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.lowering.spec import Argument, ConvolutionSpec, Output, Window
from tests.property.checking import evaluated
from tests.threads import torch_threads
from tests.unit.backend.llvm.harness import Guarded, compile_module, run
from tests.unit.scheduling.families.product.test_matrix_unit import HAS_UNIT, SEEDS, needs_unit
from tests.unit.scheduling.problems import AMX, AVX512
from tests.unit.scheduling.specs import ContractionRecorder, apply
from tests.whole import examples

WIDTH = 32
BOUND = 2**-8
"""Of the sum of the magnitudes of what is added up: results are rounded to bf16, by half of it."""


@dataclass(frozen=True)
class Drawn:
    """One convolution with bias: extents of the image [2, height, width, channels], and its window."""

    channels: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    window: Window
    last: bool = True

    def results(self) -> tuple[int, int]:
        """Rows and columns of results."""
        sizes = (self.height, self.width)
        parts = zip(sizes, self.kernel, self.window.stride, self.window.padding, self.window.dilation, strict=True)
        rows, columns = [(size + 2 * pad - (k - 1) * far - 1) // step + 1 for size, k, step, pad, far in parts]
        return rows, columns

    def spec(self) -> ConvolutionSpec:
        """The specification; images have their channels last, or columns."""
        recorder = ContractionRecorder(("b0",))
        image = Argument(bf16, ("b0", "h", "x", "w", "c"), (None, None, None, *((None, 1) if self.last else (1, None))))
        panels = Argument(bf16, ("row", "lane", "half"), (2 * WIDTH, 2, 1))
        bias = Argument(bf16, ("n",), (1,))
        out = Argument(bf16, ("b0", "y", "x", "n"), (None, None, None, 1))
        total = recorder.make("accumulator", (), (), fp32, ("b0", "y", "x", "n"))
        result = apply(recorder, "relu", recorder.add(total, recorder.read(2, bias)))
        outputs = (Output(3, recorder.cast(result, bf16)),)
        arguments = (image, panels, bias, out)
        name, pixels = "convolution", recorder.read(0, image)
        return ConvolutionSpec(name, arguments, ("b0",), pixels, 1, self.window, None, total, outputs)

    def problem(self, workers: int = 1) -> ConvolutionProblem:
        """On a CPU with a matrix unit."""
        rows, columns = self.results()
        extents = {"b0": 2, "y": rows, "x": columns, "n": self.outputs, "c": self.channels}
        extents |= {"kh": self.kernel[0], "kw": self.kernel[1]}
        return convolution_problem(self.spec(), AMX, extents, workers)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Image [2, C, H, W], weights and bias."""
        generator = torch.Generator().manual_seed(self.channels + self.outputs)
        shapes = (2, self.channels, self.height, self.width), (self.outputs, self.channels, *self.kernel)
        x, w, b = (torch.randn(shape, generator=generator).bfloat16() for shape in (*shapes, (self.outputs,)))
        return x, w, b

    def arguments(self) -> list[torch.Tensor]:
        """What the kernel gets: whatever lies around the image is NaN."""
        x, w, b = self.operands()
        rows, columns = self.results()
        shape = 2, self.height, self.width, self.channels
        strides = x.permute(0, 2, 3, 1).contiguous().stride() if self.last else x.permute(0, 2, 3, 1).stride()
        down, across, apart = strides[1:]
        memory = torch.full((3 * x.numel() + 1000,), math.nan, dtype=torch.bfloat16)
        memory.as_strided(shape, strides, 300).copy_(x.permute(0, 2, 3, 1))
        walked = 2, self.height, columns, self.width, self.channels
        steps = strides[0], down, across * self.window.stride[1], across, apart
        form = WeightPanels(WIDTH, 2, bf16, has_unit=True)
        source = w.permute(0, 2, 3, 1)[None]
        packed = torch.empty(form.nbytes(source.shape, bf16), dtype=torch.uint8)
        form.fill(source, packed)
        panels = packed.view(torch.bfloat16).view(form.rows(source.shape))
        out = torch.full((2, rows, columns, self.outputs), math.nan, dtype=torch.bfloat16)
        return [memory.as_strided(walked, steps, 300), panels, b, out]

    def check(self, found: torch.Tensor) -> None:
        """Results against torch's in float64."""
        x, w, b = (each.double() for each in self.operands())
        settings: dict[str, Any] = {
            "stride": self.window.stride,
            "padding": self.window.padding,
            "dilation": self.window.dilation,
        }
        exact = torch.nn.functional.conv2d(x, w, b, **settings).relu()
        size = torch.nn.functional.conv2d(x.abs(), w.abs(), b.abs(), **settings)
        assert bool(((found.permute(0, 3, 1, 2).double() - exact).abs() <= BOUND * size).all())


@st.composite
def drawn(draw: Any) -> Drawn:
    """Odd sizes, windows that reach past the image, padding larger than either."""
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding = (0, 0) if draw(st.booleans()) else (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    least = [max(1, (k - 1) * far + 1 - 2 * pad) for k, far, pad in zip(kernel, dilation, padding, strict=True)]
    return Drawn(
        channels=draw(st.sampled_from((1, 2, 3, 5, 16, 17, 32, 34, 37, 64))),
        outputs=draw(st.sampled_from((17, 31, 32, 33, 70))),
        height=draw(st.integers(least[0], least[0] + 8)),
        width=draw(st.integers(least[1], least[1] + 36)),
        kernel=kernel,
        window=Window((draw(st.integers(1, 3)), draw(st.integers(1, 3))), padding, dilation),
        last=draw(st.booleans()),
    )


def checked(case: Drawn, module: ModuleOp, seed: int) -> None:
    """Both oracles are right; the kernel assembles, and writes its result alone."""
    verify(module)
    *inputs, out = case.arguments()
    run_kernel(module, [*inputs, out], partition=random.Random(seed))
    case.check(out)
    if platform.machine() in ("x86_64", "AMD64"):
        assert "tdpbf16ps" in LLVMBackend().emit(module, AMX, "asm")
    if HAS_UNIT:
        guarded = Guarded(torch.full_like(out, math.nan))
        run(compile_module(module), [*inputs, guarded.tensor], workers=3)
        guarded.check(output=True)
        case.check(guarded.tensor)


@settings(max_examples=examples(5, 10))
@given(drawn(), SEEDS)
def test_any_schedule_convolves(case: Drawn, seed: int) -> None:
    schedule = space(case.problem()).restricted({"unit": ["matrix"]}).draw(random.Random(seed), 10_000)
    checked(case, lower_convolution(case.spec(), schedule), seed)


@pytest.mark.parametrize(
    ("case", "merge", "in_place"),
    [
        (Drawn(3, 40, 9, 40, (3, 3), Window((2, 2), (1, 1), (1, 1))), True, False),
        (Drawn(64, 40, 3, 50, (1, 1), Window()), False, True),
        (Drawn(36, 33, 4, 9, (3, 2), Window()), False, True),
        (Drawn(37, 20, 2, 2, (3, 3), Window((1, 1), (5, 5), (1, 1)), last=False), False, False),
    ],
)
def test_images_are_copied_merged_or_read_in_place(case: Drawn, merge: bool, in_place: bool) -> None:
    schedule = default_schedule(case.problem()).replace(merge=merge, pack_a=not in_place)
    assert space(case.problem()).violations(schedule) == ()
    checked(case, lower_convolution(case.spec(), schedule), 0)


def test_what_the_unit_multiplies_at_once_divides_what_is_summed() -> None:
    for channels in range(1, 300):
        depth = packed_depth(channels, 2, has_unit=True)
        assert channels <= depth < channels + 2 * -(-channels // 32)
        assert unit_step(depth) == 2 * math.ceil(channels / math.ceil(channels / 32) / 2)
        for columns in (1, 3, 7):
            step = unit_step(columns * depth)
            assert step % 2 == 0
            assert step <= 32
            assert columns * depth % step == 0
    assert (packed_depth(0, 2, has_unit=True), unit_step(0)) == (0, 2)
    assert packed_depth(37, 2, has_unit=False) == 38
    assert packed_depth(37, 1, has_unit=True) == 37


THREE = Window((1, 1), (1, 1), (1, 1))


def test_defaults_are_legal_and_faster_by_the_model() -> None:
    model = RooflineModel(None, AMX)
    for (rows, columns), channels, outputs, kernel, workers in product(
        ((1, 1), (7, 7), (1, 3000), (14, 30), (56, 56)), (3, 37, 64, 2048), (8, 33, 256), ((1, 1), (3, 3)), (1, 3)
    ):
        case = Drawn(channels, outputs, rows, columns, kernel, THREE if kernel == (3, 3) else Window())
        posed = case.problem(workers)
        found, chosen = space(posed), default_schedule(posed)
        by_vectors, by_unit = found.starts
        assert (by_vectors["unit"], by_unit["unit"]) == ("vector", "matrix")
        assert chosen == (by_unit if channels >= 8 and posed.products >= 100_000 else by_vectors) or channels == 3
        assert found.violations(by_vectors) == found.violations(by_unit) == ()
        if rows * columns >= 49 and channels >= 37 and outputs >= 33 and kernel == (3, 3):
            assert model.estimate(posed, by_unit).seconds < model.estimate(posed, by_vectors).seconds


def test_the_model_counts_many_schedules_as_it_counts_one() -> None:
    posed = Drawn(64, 64, 28, 28, (3, 3), THREE).problem()
    model, generator = RooflineModel(None, AMX), random.Random(0)
    some = [space(posed).draw(generator) for _ in range(30)]
    assert {schedule["unit"] for schedule in some} == {"vector", "matrix"}
    together = model.estimates(posed, some).seconds
    assert list(together) == pytest.approx([model.estimate(posed, each).seconds for each in some])


def test_pixels_are_copied_where_windows_overlap_or_many_panels_walk_them() -> None:
    def copies(channels: int, outputs: int, kernel: int = 1, last: bool = True) -> bool:
        window = THREE if kernel == 3 else Window()
        return bool(
            default_schedule(Drawn(channels, outputs, 14, 14, (kernel, kernel), window, last).problem())["pack_a"]
        )

    assert not copies(1024, 1024)
    assert not copies(256, 64)
    assert copies(1024, 2048)
    assert copies(2048, 64)
    assert copies(256, 64, kernel=3)
    assert copies(256, 64, last=False)
    assert copies(37, 64)


def test_what_the_unit_cannot_take_breaks_its_rule() -> None:
    posed = space(Drawn(64, 64, 14, 14, (3, 3), THREE).problem())
    start = posed.default
    for wrong in ({"tails": True}, {"micro": (4, 16, 32), "tile": (16, 16)}, {"micro": (1, 33, 32), "tile": (8, 33)}):
        assert posed.violations(start.replace(**wrong)) == ("matrix-unit",)
    assert "vector-registers" in posed.violations(start.replace(unit="vector"))


def test_the_unit_has_an_order_of_sums_of_its_own() -> None:
    posed = Drawn(3, 64, 14, 14, (3, 3), THREE).problem()
    order, start = kernel_family(posed).sum_order, default_schedule(posed)
    assert order(start, posed) != order(start.replace(unit="vector"), posed)
    assert order(start, posed) != order(start.replace(merge=not start["merge"]), posed)
    assert order(start, posed) == order(start.replace(order="rows"), posed) == order(start.replace(unroll=2), posed)


def test_other_cpus_have_no_such_knob_and_refuse_the_code() -> None:
    case = Drawn(37, 64, 14, 14, (3, 3), THREE)
    for target in (AVX512, replace(AMX, features=AMX.features - {"amx-bf16"})):
        posed = replace(case.problem(), target=target)
        assert not posed.has_unit
        assert "unit" not in default_schedule(posed)
        assert "unit" not in {knob.name for knob in space(posed).knobs}
        assert space(posed).violations(default_schedule(posed)) == ()
    module = lower_convolution(case.spec(), default_schedule(case.problem()))
    with pytest.raises(CompileError, match="has no matrix unit"):
        LLVMBackend().emit(module, AVX512, "source")


# -- end to end -------------------------------------------------------------------------------------------------------


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@needs_unit
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("unit", ["matrix", "vector"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_both_units_convolve_whatever_the_weights(unit: str, layout: str, constant: bool) -> None:
    cases: tuple[tuple[int, int, int, int, dict[str, Any]], ...] = (
        (34, 40, 11, 3, {"stride": 2, "padding": 1}),
        (64, 96, 6, 3, {"groups": 2, "padding": 7}),
        (3, 70, 23, 7, {"stride": 2, "padding": 3}),
        (1, 1, 1, 1, {}),
        (40, 17, 9, 1, {"stride": (3, 1)}),
        (32, 33, 8, 2, {"dilation": 3, "padding": 2}),
    )
    for channels, outputs, size, kernel, given_ in cases:
        groups = int(given_.get("groups", 1))
        x, w = normal(2, channels, size, size), normal(outputs, channels // groups, kernel, kernel)
        image = x if layout == "NCHW" else x.permute(0, 2, 3, 1).contiguous()
        weights = op.constant(w) if constant else op.tensor(w)
        found = evaluated(op.conv2d(image, weights, layout=layout, **given_).pin(unit=unit))
        exact, size_of = (
            torch.nn.functional.conv2d(a.double(), b.double(), **given_) for a, b in ((x, w), (x.abs(), w.abs()))
        )
        found = found if layout == "NCHW" else found.permute(0, 3, 1, 2)
        assert bool(((found.double() - exact).abs() <= BOUND * size_of).all())


@needs_unit
def test_nothing_gives_nothing() -> None:
    w = normal(40, 64, 3, 3)
    assert evaluated(op.conv2d(normal(0, 64, 5, 5), w)).shape == (0, 40, 3, 3)
    assert not evaluated(op.conv2d(normal(1, 0, 5, 5), normal(40, 0, 3, 3))).any()
    assert evaluated(op.conv2d(normal(1, 64, 5, 5), normal(0, 64, 3, 3))).shape == (1, 0, 3, 3)


@needs_unit
@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (3, 7), (37, 3), (64, 1)])
def test_nan_and_infinity_stay_where_the_window_sees_them(channels: int, kernel: int) -> None:
    x, w = normal(1, channels, 20, 20), normal(33, channels, kernel, kernel).abs() + 0.1
    x[0, 1, 4, 4], x[0, 2, 0, 0], x[0, 0, 19, 19] = math.nan, math.inf, math.nan
    result = op.conv2d(x, w, padding=kernel // 2)
    assert "matrix" in str(result.inspect("schedule"))
    found = evaluated(result)
    exact = torch.nn.functional.conv2d(x.float(), w.float(), padding=kernel // 2)
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf(), exact.isinf())


@needs_unit
def test_workers_agree_bit_for_bit() -> None:
    x, w = normal(2, 64, 30, 30), op.constant(normal(96, 64, 3, 3))
    results = []
    with numerics.policy("deterministic"):
        for threads in (1, 2):
            with torch_threads(threads):
                results.append(evaluated(op.conv2d(x, w, padding=1)))
    assert torch.equal(*results)
