"""Maps and reductions on GPUs: right under every schedule, whose rules have names, and chosen by the model."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.dtypes import DType, bf16, fp32
from tessera.errors import ScheduleError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.tile import operations as tile
from tessera.ir.verification import verify
from tessera.scheduling.families.gpu_cost import GpuRooflineModel
from tessera.scheduling.families.rows.gpu import space as gpu_rows_space
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu
from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem, map_reduce_gpu_problem
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tessera.scheduling.model.gpu_resources import size_step
from tests.unit.scheduling import specs
from tests.whole import examples

SEEDS = st.integers(0, 1 << 20)
ROWS = st.integers(1, 40)
COLUMNS = st.integers(1, 90)


def run(module: ModuleOp, arguments: list[Any], seed: int = 0) -> None:
    verify(module)
    run_kernel(module, arguments, partition=random.Random(seed))


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory for a result, which must be overwritten everywhere."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -99, dtype=dtype)


# -- right under every schedule ---------------------------------------------------------------------------------------


@settings(max_examples=examples(7, 15), deadline=None)
@given(ROWS, COLUMNS, st.sampled_from((1, 2, 4, 16)), st.sampled_from((fp32, bf16)), SEEDS)
def test_several_rows_of_a_program(rows: int, columns: int, height: int, dtype: DType, seed: int) -> None:
    spec = specs.rows("softmax", dtype)
    schedule = Schedule(tile=(height, gpu_rows_space.row_width(columns)), whole_row=True, warps=1)
    x = torch.randn(rows, columns).to(dtype.torch)
    out = poisoned(rows, columns, dtype=dtype.torch)
    run(lower_map_reduce_gpu(spec, schedule), [x, out], seed)
    specs.close(out, x.double().softmax(-1))


def test_rows_of_a_batch_and_parameters_along_them() -> None:
    spec = specs.rows("layer_norm", fp32, 2, outer=("o0", "o1"), eps=1e-3)
    x, weight, bias = torch.randn(3, 5, 70), torch.randn(70), torch.randn(70)
    out = poisoned(3, 5, 70)
    run(lower_map_reduce_gpu(spec, Schedule(tile=(4, 128), whole_row=True, warps=2)), [x, weight, bias, out])
    expected = torch.nn.functional.layer_norm(x.double(), (70,), weight.double(), bias.double(), 1e-3)
    specs.close(out, expected, 8.0)


@settings(max_examples=examples(10, 20), deadline=None)
@given(
    st.integers(1, 60),
    COLUMNS,
    st.sampled_from((1, 2, 8, 32)),
    st.sampled_from(("sum", "mean", "max", "argmax")),
    SEEDS,
)
def test_columns_in_steps_of_several_rows(depth: int, columns: int, height: int, kind: str, seed: int) -> None:
    spec = specs.reduction(kind, fp32, by_rows=False)
    x = torch.randn(depth, columns)
    out = poisoned(columns, dtype=spec.arguments[1].dtype.torch)
    run(lower_map_reduce_gpu(spec, Schedule(tile=(height, 32), whole_row=False, warps=1)), [x, out], seed)
    references: dict[str, Any] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "argmax": torch.argmax}
    specs.close(out, references[kind](x.double(), dim=0), 10.0)


@pytest.mark.parametrize("height", [1, 4])
def test_nan_and_infinity_pass_through_columns(height: int) -> None:
    x = torch.randn(7, 33)
    x[3, 5], x[6, 9] = float("nan"), float("-inf")
    out = poisoned(33)
    spec = specs.reduction("max", fp32, by_rows=False)
    run(lower_map_reduce_gpu(spec, Schedule(tile=(height, 32), whole_row=False, warps=1)), [x, out])
    assert torch.equal(out.isnan(), torch.amax(x, 0).isnan())
    specs.close(out, torch.amax(x.double(), 0))


@settings(max_examples=examples(7, 15), deadline=None)
@given(ROWS, COLUMNS, st.sampled_from(((1, 64), (4, 32), (16, 32))), SEEDS)
def test_maps_in_tiles(rows: int, columns: int, shape: tuple[int, int], seed: int) -> None:
    spec = specs.add_scaled(fp32)
    x, y, out = torch.randn(rows, columns), torch.randn(columns), poisoned(rows, columns)
    run(lower_map_reduce_gpu(spec, Schedule(tile=shape, whole_row=False, warps=1)), [x, y, 2.5, out], seed)
    specs.close(out, x.double() + 2.5 * y.double(), 4.0)


def test_rows_that_do_not_lie_side_by_side() -> None:
    x = torch.randn(9, 200)[::2, :70]
    out = poisoned(5, 70)
    run(lower_map_reduce_gpu(specs.rows("softmax", fp32), Schedule(tile=(2, 128), whole_row=True, warps=1)), [x, out])
    specs.close(out, x.double().softmax(-1))


def test_streamed_results_are_marked() -> None:
    for whole in (True, False):
        schedule = Schedule(tile=(1, 64), whole_row=whole, warps=1, nontemporal=True)
        module = lower_map_reduce_gpu(specs.rows("softmax", fp32), schedule)
        assert any(op.nontemporal is not None for op in module.walk() if isinstance(op, tile.StoreOp))


# -- rules ------------------------------------------------------------------------------------------------------------


def problem(spec: MapReduceSpec, gpu: str = "h100", **extents: int) -> GpuRowsProblem:
    return map_reduce_gpu_problem(spec, extents, target.gpu(gpu))


SOFTMAX = problem(specs.rows("softmax", bf16), o0=4096, c=1024)
COLUMN_SUM = problem(specs.reduction("sum", fp32, by_rows=False), r=4096, c=4096)
MAP = problem(specs.add_scaled(bf16), o0=64, c=4096)
BROKEN: dict[str, tuple[GpuRowsProblem, dict[str, KnobValue]]] = {
    "threads-per-block": (problem(specs.rows("softmax", bf16), "mi300x", o0=64, c=8192), {"warps": 32}),
    "row-in-tile": (SOFTMAX, {"tile": (1, 512), "whole_row": True}),
    "tile-in-registers": (
        problem(specs.rows("softmax", fp32), o0=64, c=65536),
        {"tile": (1, 65536), "whole_row": True},
    ),
    "masks-in-registers": (
        problem(specs.rows("softmax", fp32), "mi300x", o0=4, c=1 << 20),
        {"tile": (1, 8192), "whole_row": False, "warps": 8},
    ),
    "work-per-thread": (SOFTMAX, {"tile": (1, 32), "whole_row": False, "warps": 4}),
    "rows-of-a-tile": (SOFTMAX, {"tile": (4, 512), "whole_row": False}),
    "coalesced-access": (problem(specs.reduction("sum", bf16, by_rows=False), r=64, c=64), {"tile": (8, 8)}),
    "vector-width": (SOFTMAX, {"tile": (1, 1024), "warps": 8}),
    "tile-within-problem": (MAP, {"tile": (1, 8192)}),
    "streaming-needs-size": (MAP, {"nontemporal": True}),
}


def test_every_rule_is_tried() -> None:
    assert {rule.name for rule in gpu_rows_space.RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    posed, changes = BROKEN[name]
    space = gpu_rows_space.space(posed)
    schedule = space.default.replace(**changes)
    assert name in space.violations(schedule)
    with pytest.raises(ScheduleError) as error:
        space.check(schedule)
    assert any(hint.startswith(f"rule {name}: ") for hint in error.value.hints)


SHAPES = ((1, 1), (1, 7), (4096, 1024), (3, 100_003), (100_000, 16), (2, 1 << 20), (1 << 20, 3))


@pytest.mark.parametrize("gpu", ["sm80", "sm90", "sm100", "gfx942"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_is_legal(gpu: str, shape: tuple[int, int]) -> None:
    outer, lanes = shape
    for spec, extents in (
        (specs.rows("softmax", fp32), {"o0": outer, "c": lanes}),
        (specs.rows("layer_norm", bf16, 2, eps=1e-5), {"o0": outer, "c": lanes}),
        (specs.reduction("sum", fp32, by_rows=False), {"r": outer, "c": lanes}),
        (specs.reduction("max", bf16, by_rows=True), {"o0": outer, "c": lanes}),
        (specs.add_scaled(bf16), {"o0": outer, "c": lanes}),
    ):
        space = gpu_rows_space.space(problem(spec, gpu, **extents))
        assert space.violations(space.default) == (), spec.name


# -- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "mi300x"])
@pytest.mark.parametrize(
    ("spec", "extents"),
    [
        (specs.rows("softmax", bf16), {"o0": 65536, "c": 1024}),
        (specs.rows("softmax", fp32), {"o0": 1 << 20, "c": 64}),
        (specs.rows("layer_norm", bf16, 2, eps=1e-5), {"o0": 16384, "c": 4096}),
        (specs.reduction("sum", fp32, by_rows=True), {"o0": 16384, "c": 4096}),
        (specs.add_scaled(bf16), {"o0": 8192, "c": 8192}),
    ],
)
def test_large_ones_are_bound_by_memory_with_enough_bytes_in_flight(
    gpu: str, spec: MapReduceSpec, extents: dict[str, int]
) -> None:
    posed = problem(spec, gpu, **extents)
    found = GpuRooflineModel(None, posed.target).estimate(posed, gpu_rows_space.default_schedule(posed))
    assert found.binding == "HBM"
    assert "16 bytes a thread" in found.explain()
    reached = (posed.bytes_in + posed.bytes_out) / found.seconds
    assert reached > 0.85 * found.rates.hbm_byte_per_s


def test_short_rows_share_a_program_and_long_ones_are_walked() -> None:
    short = gpu_rows_space.default_schedule(problem(specs.rows("softmax", fp32), o0=1 << 20, c=64))
    assert short.integers("tile")[0] > 1
    assert short["whole_row"]
    long = gpu_rows_space.default_schedule(problem(specs.rows("softmax", fp32), o0=512, c=1 << 20))
    assert not long["whole_row"]


def test_several_rows_at_a_time_shorten_a_column_sum() -> None:
    model = GpuRooflineModel(None, COLUMN_SUM.target)
    one, many = (model.estimate(COLUMN_SUM, Schedule(tile=(rows, 128), whole_row=False, warps=4)) for rows in (1, 32))
    assert many.seconds < one.seconds / 4
    assert one.binding == "latency"


def test_more_rows_never_take_less_and_the_roofline_holds() -> None:
    model = GpuRooflineModel(None, SOFTMAX.target)
    for schedule in (
        Schedule(tile=(1, 1024), whole_row=True, warps=4),
        Schedule(tile=(1, 256), whole_row=False, warps=1),
    ):
        seconds = []
        for rows in (1, 2, 100, 132, 133, 5000, 1 << 20):
            posed = problem(specs.rows("softmax", bf16), o0=rows, c=1024)
            found = model.estimate(posed, schedule)
            assert found.seconds >= (posed.bytes_in + posed.bytes_out) / 3.352e12
            assert found.terms[found.binding] == max(found.terms.values())
            seconds.append(found.seconds)
        assert seconds == sorted(seconds)


def test_unaligned_rows_are_loaded_as_wide_as_they_allow() -> None:
    assert replace(SOFTMAX, lanes=1001).alignment == SOFTMAX.alignment  # the problem says it, not the schedule
    assert problem(specs.rows("softmax", bf16), o0=64, c=1001).alignment == 2
    assert problem(specs.rows("softmax", fp32), o0=64, c=1002).alignment == 8
    assert problem(specs.reduction("sum", fp32, by_rows=True), o0=1, c=1001).alignment == 16  # one row


def test_problems_of_about_the_same_size_share_a_choice_without_asking_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = gpu_rows_space.default_schedule(problem(specs.rows("softmax", bf16), o0=60_000, c=1000))
    monkeypatch.setattr(gpu_rows_space, "estimate_rows", None)
    assert gpu_rows_space.default_schedule(problem(specs.rows("softmax", bf16), o0=61_234, c=1008)) == first


@given(st.integers(0, 1 << 40))
def test_size_classes_are_close(extent: int) -> None:
    assert extent <= size_step(extent) <= 1.26 * extent
    assert size_step(size_step(extent)) == size_step(extent)
