"""Reductions of few long rows: two launches, right whatever the lengths, and one where one will do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import Tensor, autotune, op, profiler, target
from tessera.backend.contract import StaticFacts
from tessera.compiler.device.gpu import gpu_kernels
from tessera.compiler.explain.inspection import schedules_of
from tessera.errors import CompileError


def put(values: torch.Tensor) -> Tensor:
    return op.tensor(values, device="interpreter")


@pytest.mark.parametrize(
    ("shape", "ours", "torchs"),
    [
        ((40_009,), op.sum, torch.sum),
        ((3, 50_021), lambda x: op.max(x, axis=-1), lambda x: x.amax(-1)),
        ((30_011, 3), lambda x: op.mean(x * 2.0, axis=0) + 1.0, lambda x: (x * 2).mean(0) + 1),
        ((2, 40_003), lambda x: op.min(x, axis=1, keepdims=True), lambda x: x.amin(1, keepdim=True)),
        ((5, 1, 40_000), lambda x: op.sum(x, axis=(1, 2)), lambda x: x.sum((1, 2))),
    ],
)
def test_two_launches_reduce_a_long_axis(
    shape: tuple[int, ...], ours: Callable[[Tensor], Tensor], torchs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(shape)
    result = ours(put(x))
    first, second = schedules_of(result.structure)
    assert "chunk" in first
    assert "chunk" not in second
    torch.testing.assert_close(result.torch().double(), torchs(x.double()), rtol=1e-5, atol=2e-3)


def test_views_nan_and_inf() -> None:
    x = torch.randn(40_000, 4)[:, ::2]
    torch.testing.assert_close(op.sum(put(x), axis=0).torch(), x.sum(0), rtol=1e-4, atol=2e-3)
    spoilt = torch.randn(2, 40_000)
    spoilt[0, 39_999], spoilt[1, 17] = float("nan"), float("inf")
    assert op.max(put(spoilt), axis=-1).torch().isnan().tolist() == [True, False]
    assert op.sum(put(spoilt), axis=-1).torch()[1] == float("inf")


@pytest.mark.parametrize("shape", [(64, 64), (1,), (0,), (4096, 512)])
def test_one_launch_where_chunks_gain_nothing(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    result = op.sum(put(x), axis=-1)
    assert all("chunk" not in schedule for schedule in schedules_of(result.structure))
    if len(shape) == 2 and shape[0] > 64:
        return  # the interpreter takes a millisecond for each of many rows
    torch.testing.assert_close(result.torch(), x.sum(-1), rtol=1e-4, atol=1e-3)


def test_what_needs_its_row_again_is_one_launch() -> None:
    x = torch.randn(2, 40_000)
    result = op.softmax(put(x))
    assert len(schedules_of(result.structure)) == 1
    torch.testing.assert_close(result.torch(), x.softmax(-1))


def test_pinned_knobs_are_those_of_one_launch() -> None:
    x = torch.randn(40_000)
    (schedule,) = schedules_of(op.sum(put(x)).pin(warps=8).structure)
    assert schedule["warps"] == 8


def test_later_calls_and_sessions_give_the_same_bits() -> None:
    x = put(torch.randn(40_000))
    results = {op.sum(x).eval().item() for _ in range(3)}
    with profiler.session():
        results.add(op.sum(x).eval().item())
    assert len(results) == 1


def test_reductions_in_chunks_are_not_tuned_and_say_so() -> None:
    with pytest.raises(CompileError, match="chunks"):
        autotune(op.sum, shapes=(1, 60_000), method="on_device", max_trials=1, device="interpreter")


def test_on_an_h100_a_full_sum_keeps_every_multiprocessor_busy() -> None:
    first, second = gpu_kernels(op.sum, (8192, 8192), "bf16", target.gpu("sm90"), candidates=3)
    chunk = first.schedule.integer("chunk")
    assert 8192 * 8192 // chunk >= 132
    for kernel in (first, second):
        assert isinstance(kernel.facts, StaticFacts)
        assert kernel.facts.spill_bytes == 0
    assert isinstance(first.facts, StaticFacts)
    assert first.facts.instructions["ld.global.v4"] > 0
