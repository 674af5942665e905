"""Reductions in two steps: chunks by programs of their own, then what they came to, for any length and kind."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import target
from tessera.dtypes import bf16, fp32
from tessera.errors import ScheduleError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.verification import verify
from tessera.scheduling.families.rows.gpu.chunks import PART, lower_partial_gpu, partial_schedule, two_steps
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu
from tessera.scheduling.families.rows.gpu.problem import map_reduce_gpu_problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tests.unit.scheduling import specs
from tests.whole import examples

CHUNK = 64
REFERENCES: dict[str, Any] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}


def run(spec: MapReduceSpec, x: torch.Tensor, out: torch.Tensor, by_rows: bool, seed: int) -> None:
    """Both steps, with poisoned memory between them."""
    steps = two_steps(spec)
    assert steps is not None
    extent = x.shape[1 if by_rows else 0]
    parts = max(-(-extent // CHUNK), 1)
    shape = (x.shape[0], parts) if by_rows else (parts, x.shape[1])
    partial = torch.full(shape, float("nan"), dtype=steps.first.outputs[0].value.dtype.torch)
    tile = (1, 32) if by_rows else (4, 32)
    first = lower_partial_gpu(steps.first, Schedule(tile=tile, warps=1, chunk=CHUNK))
    width = max(1 << (parts - 1).bit_length(), 32)
    joining = Schedule(tile=(1, width if by_rows else 32), whole_row=by_rows, warps=1)
    second = lower_map_reduce_gpu(steps.second, joining)
    verify(first)
    verify(second)
    run_kernel(first, [x, partial], partition=random.Random(seed))
    inputs = [x for _ in steps.inputs]
    run_kernel(second, [partial, *inputs, out], partition=random.Random(seed))


@settings(max_examples=examples(15, 30), deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.sampled_from(tuple(REFERENCES)),
    st.booleans(),
    st.sampled_from((fp32, bf16)),
    st.integers(0, 1 << 20),
)
def test_two_steps_come_to_the_same(few: int, many: int, kind: str, by_rows: bool, dtype: Any, seed: int) -> None:
    spec = specs.reduction(kind, dtype, by_rows)
    x = torch.randn(few, many).to(dtype.torch) if by_rows else torch.randn(many, few).to(dtype.torch)
    out = torch.full((few,), float("nan"), dtype=dtype.torch)
    run(spec, x, out, by_rows, seed)
    specs.close(out, REFERENCES[kind](x.double(), dim=int(by_rows)), 10.0)


@pytest.mark.parametrize("by_rows", [True, False])
def test_nan_and_infinity_come_through(by_rows: bool) -> None:
    x = torch.randn(3, 200) if by_rows else torch.randn(200, 3)
    rows = x if by_rows else x.T
    rows[0, 150], rows[1, 7] = float("nan"), float("inf")
    out = torch.empty(3)
    run(specs.reduction("max", fp32, by_rows), x, out, by_rows, 0)
    torch.testing.assert_close(out, rows.amax(1), equal_nan=True)


def test_the_second_step_knows_what_it_takes() -> None:
    mean = two_steps(specs.reduction("mean", fp32, by_rows=True))
    assert mean is not None
    assert mean.inputs == (0,)  # for its extent alone
    assert mean.first.arguments[-1].axes == ("o0", PART)
    assert mean.second.counted == "c"
    total = two_steps(specs.reduction("sum", fp32, by_rows=False))
    assert total is not None
    assert total.inputs == ()
    assert total.first.arguments[-1].axes == (PART, "c")


@pytest.mark.parametrize(
    "spec",
    [
        specs.rows("softmax", fp32),  # walks its row again, and writes along it
        specs.reduction("argmax", fp32, by_rows=True),  # finds the maximum before it finds where
        specs.add_scaled(fp32),  # reduces nothing
    ],
)
def test_what_needs_more_than_one_walk_has_no_two_steps(spec: MapReduceSpec) -> None:
    assert two_steps(spec) is None


def test_joined_rows_are_held() -> None:
    mean = two_steps(specs.reduction("mean", fp32, by_rows=True))
    assert mean is not None
    with pytest.raises(ScheduleError, match="whole_row=True"):
        lower_map_reduce_gpu(mean.second, Schedule(tile=(1, 64), whole_row=False, warps=1))


@pytest.mark.parametrize("gpu", ["a100", "h100", "mi300x"])
@pytest.mark.parametrize(
    ("by_rows", "extents"),
    [(True, {"o0": 1, "c": 1 << 26}), (True, {"o0": 7, "c": 10_000_019}), (False, {"r": 1_000_003, "c": 64})],
)
def test_a_long_reduction_uses_every_multiprocessor(gpu: str, by_rows: bool, extents: dict[str, int]) -> None:
    spec = specs.reduction("sum", fp32, by_rows)
    problem = map_reduce_gpu_problem(spec, extents, target.gpu(gpu))
    schedule = partial_schedule(problem)
    assert schedule is not None
    rows, width = schedule.integers("tile")
    assert schedule.integer("chunk") % (width if by_rows else rows) == 0
    parts = -(-problem.reduced // schedule.integer("chunk"))
    programs = parts * max(problem.outer, 1) * (1 if by_rows else -(-problem.lanes // width))
    assert programs >= problem.target.cores
    assert parts <= 16_384  # a second program holds them


@pytest.mark.parametrize(
    ("by_rows", "extents"), [(True, {"o0": 4096, "c": 4096}), (True, {"o0": 1, "c": 1000}), (False, {"r": 40, "c": 64})]
)
def test_a_second_kernel_is_not_worth_it_for_many_rows_or_short_ones(by_rows: bool, extents: dict[str, int]) -> None:
    spec = specs.reduction("sum", fp32, by_rows)
    assert partial_schedule(map_reduce_gpu_problem(spec, extents, target.gpu("h100"))) is None
