"""`graph.profile` on a real GPU: its clock, its multiprocessors, and the usual results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tessera import graph, op
from tessera.compiler.bind.arrays import Call
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ChosenSchedule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def test_tiles_of_a_product_fill_the_call_that_events_time() -> None:
    a, b = drawn(4096, 4096), drawn(4096, 4096)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def step() -> None:
        begin.record()
        op.matmul(a, b).eval()
        end.record()

    (row,) = graph.profile(step, steps=3, warmup=2).rows
    end.synchronize()
    rows, columns, _ = Schedule.parse(row.schedule).integers("tile")
    assert row.tiles == -(-4096 // rows) * -(-4096 // columns)
    assert 0 < row.fastest_us <= row.latency_us <= row.slowest_us <= row.call_us
    assert row.call_us <= begin.elapsed_time(end) * 1e3
    assert row.occupancy_pct is not None
    assert 20 < row.occupancy_pct <= 100


def walking(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule:
    schedule = compiler.default_schedule(compiler.subject(call), problem).replace(grid="persistent")
    return ChosenSchedule(schedule, "given")


@pytest.fixture
def persistent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compiler = compilers.gpu_compiler("cuda:0")
    monkeypatch.setattr(compiler, "tuned", walking)
    compiler.forget_schedules()
    yield
    compiler.forget_schedules()


@pytest.mark.usefixtures("persistent")
def test_programs_that_walk_the_grid_have_a_record_for_each_tile() -> None:
    a, b = drawn(4096, 1024), drawn(1024, 4096)
    (row,) = graph.profile(lambda: op.matmul(a, b).eval()).rows
    schedule = Schedule.parse(row.schedule)
    rows, columns, _ = schedule.integers("tile")
    assert schedule["grid"] == "persistent"
    assert row.tiles == -(-4096 // rows) * -(-4096 // columns)
    assert row.tiles > torch.cuda.get_device_properties(0).multi_processor_count


def test_results_and_later_calls_are_the_usual_ones() -> None:
    a, b = drawn(512, 256), drawn(256, 384)
    usual = op.softmax(op.matmul(a, b)).torch().clone()
    found: list[torch.Tensor] = []
    result = graph.profile(lambda: found.append(op.softmax(op.matmul(a, b)).torch().clone()), steps=2)
    assert all(torch.equal(each, usual) for each in found)
    assert torch.equal(op.softmax(op.matmul(a, b)).torch(), usual)
    assert any(note.startswith("the clock of cuda:0 advances by ") for note in result.notes)
    assert all(row.tiles and row.calls == 2 for row in result.rows)
