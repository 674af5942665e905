"""`graph.profile` of a GPU's kernels, as the interpreter runs them, whose clock counts what it is asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import dtypes, graph, op, profile
from tessera.backend.contract import GpuKernelObject
from tessera.backend.interpreter import InterpreterBackend, interpreted_functions
from tessera.compiler.bind.arrays import Call
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.errors import CompileError
from tessera.handle import Tensor
from tessera.ir.tile.operations import find_kernel
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.profiling.tiles.device_tiles import CLOCK_COST, DeviceTiles
from tessera.runtime.plans.gpu_timed_plan import TimedDevicePlan, TimedStep, tile_memory
from tessera.runtime.plans.plan import PlanOutput
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ChosenSchedule
from tessera.target import Target
from tests.unit.runtime.devices.fake import FakeDriver
from tests.unit.runtime.plans.test_device_plan import RESULT, SLOTS, leaf, plan

TICK_NS = 7


@pytest.fixture(autouse=True)
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the interpreter's clock is `TICK_NS` later than the one before."""
    ticks = itertools.count(1000)
    clock = SimpleNamespace(perf_counter_ns=lambda: TICK_NS * next(ticks))
    monkeypatch.setattr(interpreted_functions, "time", clock)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def put(*shape: int) -> Tensor:
    return op.tensor(drawn(*shape), device="interpreter")


def tiles_of(m: int, n: int, schedule: str) -> int:
    rows, columns, _ = Schedule.parse(schedule).integers("tile")
    return -(-m // rows) * -(-n // columns)


def test_each_program_is_a_tile_between_two_readings() -> None:
    a, b = put(40, 20), put(20, 70)
    (row,) = graph.profile(lambda: op.matmul(a, b).eval(), steps=2).rows
    tiles = tiles_of(40, 70, row.schedule)
    assert (row.calls, row.tiles) == (2, tiles)
    assert tiles > 1
    assert (row.latency_us, row.fastest_us, row.slowest_us) == (TICK_NS / 1e3,) * 3
    assert row.call_us == pytest.approx(TICK_NS * (2 * tiles - 1) / 1e3)
    assert row.occupancy_pct == pytest.approx(100 * tiles / (2 * tiles - 1))
    assert (row.clock_pct, row.unavailable) == (None, {"clock_pct": CLOCK_COST})
    assert row.label.startswith("MatMul[")


def persistent(compiler: DeviceCompiler, call: Call, problem: Problem) -> ChosenSchedule:
    chosen = compiler.default_schedule(compiler.subject(call), problem)
    return ChosenSchedule(chosen.replace(tile=(16, 16, 16), grid="persistent"), "tuned")


@pytest.fixture
def walking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compiler = compilers.gpu_compiler("interpreter")
    monkeypatch.setattr(compiler, "tuned", persistent)
    compiler.forget_schedules()
    yield
    compiler.forget_schedules()


@pytest.mark.usefixtures("walking")
def test_programs_that_walk_the_grid_have_a_record_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = put(33, 16), put(16, 50)
    (row,) = graph.profile(lambda: op.matmul(a, b)).rows
    assert Schedule.parse(row.schedule)["grid"] == "persistent"
    assert row.tiles == 3 * 4


def test_it_is_printed_as_other_tiles_are(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = put(40, 20), put(20, 70)
    (row,) = graph.profile(lambda: op.matmul(a, b)).rows
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split() == [row.label, "latency=0.007µs", f"occupancy={row.occupancy_pct:.0f}%", f"tiles={row.tiles}"]
    assert "the clock of interpreter advances by 7 ns" in rest
    assert not [line for line in rest if "reading the clock" in line or "not timed" in line]


def test_results_are_those_of_the_usual_kernels_which_come_back_afterwards() -> None:
    a, b = put(33, 20), put(20, 30)
    usual = op.matmul(a, b).torch().clone()
    timed: list[torch.Tensor] = []
    graph.profile(lambda: timed.append(op.softmax(op.matmul(a, b), -1).torch().clone()), warmup=0)
    assert torch.equal(timed[0], op.softmax(op.tensor(usual, device="interpreter"), -1).torch())
    assert torch.equal(op.matmul(a, b).torch(), usual)


class Clockless(InterpreterBackend):
    """Refuses timed kernels."""

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[GpuKernelObject | CompileError]:
        """What the interpreter has, but for those."""
        made = super().compile_all(modules, target, keep)
        timed = [find_kernel(module).timed is not None for module in modules]
        return [CompileError("no clock here") if reads else each for each, reads in zip(made, timed, strict=True)]


def test_kernels_that_do_not_compile_with_a_clock_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compilers.gpu_compiler("interpreter")
    monkeypatch.setattr(compiler.planner, "backend", Clockless())
    a, b = put(17, 9), put(9, 21)
    found: list[torch.Tensor] = []
    result = graph.profile(lambda: found.append(op.matmul(a, b).torch().clone()), warmup=0)
    assert result.rows == ()
    assert "does not time its tiles: no clock here" in result.notes[0]
    assert result.notes[1:] == ("1 kernels on interpreter are not timed",)
    torch.testing.assert_close(found[0], drawn(17, 9) @ drawn(9, 21))


def test_sessions_take_up_every_kernel_that_times_its_tiles() -> None:
    a, b = put(33, 20), put(20, 30)
    with profile.session() as outer:
        graph.profile(lambda: op.relu(op.tensor(op.matmul(a, b).numpy(), device="interpreter")).eval(), steps=2)
    kernels = [record for record in outer.records() if record.kind == "kernel"]
    assert outer.launched == outer.recorded == len(kernels) == 6
    assert outer.unmeasured == {}
    assert [record.operator for record in kernels] == ["matmul", "relu"] * 3
    assert all(record.duration_us > 0 for record in kernels)


def test_leaves_that_start_anywhere_have_tiles_of_their_own() -> None:
    base = drawn(64 * 48 + 1)
    even, odd = base[:-1].view(64, 48), base[1:].view(64, 48)

    def step() -> None:
        for values in (even, odd):
            op.relu(op.tensor(values, device="interpreter")).eval()

    rows = graph.profile(step, steps=3).rows
    assert sum(row.calls for row in rows) == 6
    assert all(row.tiles for row in rows)


def test_calls_of_libraries_between_kernels_leave_each_kernel_its_facts_and_tiles() -> None:
    x = put(4, 16)

    def step() -> torch.Tensor:
        return op.relu(op.irfft(op.rfft(op.relu(x)) * 2.0)).torch()

    rows = graph.profile(step).rows
    assert [(row.operator, row.calls) for row in rows] == [("relu", 2), ("mul", 1)]
    assert [row.shapes[0] for row in rows] == [(4, 16), (4, 9, 2)]
    assert all(row.tiles == 1 for row in rows)


def test_what_a_program_captures_is_launched_and_not_waited_for() -> None:
    driver, steps = FakeDriver(), plan(FakeDriver()).steps
    made = TimedDevicePlan(
        driver=driver,
        pieces=[TimedStep(step, DeviceTiles(1.0, 1), tile_memory(driver, 3)) for step in steps],
        slots=SLOTS,
        results=[128],
        outputs=[PlanOutput(0, RESULT)],
        arena_bytes=256,
    )
    driver.capturing = True
    with profile.session() as session:
        made.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
    assert [entry[:2] for entry in driver.log] == [("launch", "first"), ("launch", "second")]
    assert session.unmeasured == {"cuda:0": 2}
    assert [each.calls for each in made.tiles if each is not None] == [0, 0]


def test_an_empty_tensor_launches_nothing() -> None:
    result = graph.profile(lambda: op.relu(op.tensor(torch.empty(0, 5), device="interpreter")))
    assert result.rows == ()
