"""`graph.profile`: operators and tiles of a step, from builds of its kernels that time them."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import Tensor, graph, numerics, op, profile, settings, stream
from tessera.backend.tile_times import CAPACITY, COUNT, HEADER_WORDS, LONGEST, SHORTEST, TOTAL, WORKER_WORDS
from tessera.compiler import pipeline
from tessera.compiler.bind.launches import Choice
from tessera.compiler.device import compilers, timing
from tessera.compiler.explain.inspection import inspect_structure
from tessera.errors import ArgumentError
from tessera.lazy.policy import is_current
from tessera.profiling.report.labels import kernel_label, operator_name
from tessera.profiling.tiles.tile_profile import ALONE, LOST_RECORDS, NO_TILES, NOT_TIMED, TileProfile, TileRow, rows_of
from tessera.profiling.tiles.tiles import HELD, ClockCost, TileTimes, collecting
from tessera.profiling.trace.schema import Record
from tessera.scheduling.language.schedule import Schedule
from tests.whole import some

PINNED = (48, 64, 32)


@pytest.fixture(params=[1, 2, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    with settings.override(threads=request.param):
        pipeline.forget_plans()
        yield request.param
    pipeline.forget_plans()


def profiled(step: Callable[[], object], **options: int) -> tuple[TileRow, ...]:
    return graph.profile(step, **options).rows


def shares(extent: int, step: int, workers: int) -> list[int]:
    """The extents of the workers' shares: whole steps, as even as they come."""
    steps = -(-extent // step)
    ends = [min(steps * worker // workers * step, extent) for worker in range(workers + 1)]
    return [end - start for start, end in pairwise(ends)]


def product_tiles(m: int, n: int, k: int, schedule: Schedule, workers: int) -> int:
    """Macro tiles of a product: of each worker's rows and columns, once for each block of K."""
    (mc, nc, kc), (mr, nr) = schedule.integers("tile"), schedule.integers("micro")
    mc, nc = mc // mr * mr, nc // nr * nr
    rows = shares(m, mr, workers) if schedule["parallel"] == "rows" else [m] * workers
    columns = shares(n, nr, workers) if schedule["parallel"] == "columns" else [n] * workers
    return sum(-(-a // mc) * -(-b // nc) * -(-k // kc) for a, b in zip(rows, columns, strict=True))


def test_the_tiles_of_a_product_are_those_of_its_schedule(workers: int) -> None:
    a, b = torch.randn(131, 70), torch.randn(70, 150)
    (row,) = profiled(lambda: op.matmul(a, b, tile_shape=PINNED))
    schedule = Schedule.parse(row.schedule)
    assert row.label == f"MatMul[{'x'.join(map(str, schedule.integers('tile')))}]"
    assert row.workers == workers
    assert row.tiles == product_tiles(131, 150, 70, schedule, workers)
    assert row.tiles > 1


@given(st.integers(1, 90), st.integers(24, 90), st.integers(1, 90))
def test_the_tiles_of_drawn_products_are_those_of_their_schedules(m: int, n: int, k: int) -> None:
    with settings.override(threads=2):
        a, b = torch.randn(m, k), torch.randn(k, n)
        (row,) = (row for row in profiled(lambda: op.matmul(a, b, tile_shape=PINNED)) if row.operator == "matmul")
        schedule = Schedule.parse(row.schedule)
        if "pack_b" in schedule and schedule["parallel"] in ("rows", "columns"):
            assert row.tiles == product_tiles(m, n, k, schedule, row.workers)
    pipeline.forget_plans()


def test_rows_of_a_softmax_are_its_tiles(workers: int) -> None:
    x = torch.randn(37, 101)
    (row,) = profiled(lambda: op.softmax(x), steps=3)
    assert (row.calls, row.tiles) == (3, 37)


STEPS: dict[str, Callable[[], Tensor]] = {}


def step(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    STEPS[make.__name__] = make
    return make


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@step
def product() -> Tensor:
    return op.matmul(drawn(67, 45), drawn(45, 83))


@step
def few_columns() -> Tensor:
    return op.matmul(drawn(67, 145), drawn(145, 2))


@step
def products_of_a_batch() -> Tensor:
    return op.matmul(drawn(3, 17, 45), drawn(3, 45, 33))


@step
def fused() -> Tensor:
    return op.gelu(op.matmul(drawn(31, 45), drawn(45, 83)) + drawn(83))


@step
def attention() -> Tensor:
    return op.flash_attention(drawn(1, 2, 33, 16), drawn(1, 2, 47, 16), drawn(1, 2, 47, 16))


@step
def convolution() -> Tensor:
    return op.conv2d(drawn(1, 3, 13, 14), drawn(5, 3, 3, 3), padding=1)


@step
def windows() -> Tensor:
    return op.depthwise_conv2d(drawn(1, 8, 13, 14), drawn(8, 1, 3, 3), padding=1)


@step
def columns() -> Tensor:
    return op.sum(drawn(41, 67), 0)


@step
def number() -> Tensor:
    return op.sum(drawn(41, 67))


@step
def transposed() -> Tensor:
    return op.gelu(op.tensor(drawn(41, 67)).T + drawn(67, 41))


@pytest.mark.parametrize(
    ("name", "threads"), some([(name, threads) for name in STEPS for threads in (1, 2)], lambda case: case[0])
)
def test_timed_builds_give_the_same_bits_and_times_within_the_call(name: str, threads: int) -> None:
    kept: list[torch.Tensor] = []
    with settings.override(threads=threads):
        pipeline.forget_plans()
        usual = STEPS[name]().torch().clone()
        rows = profiled(lambda: kept.append(STEPS[name]().torch().clone()))
    pipeline.forget_plans()
    assert all(torch.equal(usual, result) for result in kept)
    assert rows
    for row in rows:
        assert row.tiles is not None
        assert row.tiles >= 1
        assert row.occupancy_pct is not None
        assert 0 < row.occupancy_pct < 101  # tiles lie within calls; the two are converted from ticks apart
        assert 0 <= row.fastest_us <= row.latency_us <= row.slowest_us
        # One tile lies in its call, whose edges are read by another thread; all of one worker's do.
        assert row.slowest_us <= max(row.call_us, 1) * 1.01 + 1


def test_the_usual_kernels_stay_as_they_are_and_are_used_again() -> None:
    expression = op.matmul(drawn(9, 8), drawn(8, 7))
    structure = expression.structure
    expression.eval()
    plan = structure.plan
    text = inspect_structure(structure, "target")
    profiled(lambda: op.matmul(drawn(9, 8), drawn(8, 7)))
    assert structure.plan is plan
    assert is_current(None)
    assert inspect_structure(structure, "target") == text
    assert "counter" not in text


def test_a_timed_build_reads_the_clock() -> None:
    expression = op.matmul(drawn(9, 8), drawn(8, 7))
    (choice,) = pipeline_choices(expression)
    compiler = compilers.kernel_compiler()
    module = compiler.tile_ir(choice.subject, choice.schedule, timed=True)
    assert "counter" in str(compiler.backend.emit(module, compiler.target, "source"))


def pipeline_choices(expression: Tensor) -> list[Choice]:
    pipeline.plan(expression.structure)
    return pipeline.launched(expression.structure)


def test_what_is_left_unevaluated_is_timed_too() -> None:
    (row,) = profiled(lambda: op.softmax(drawn(5, 6)))
    assert row.operator == "softmax"


def test_the_steps_are_called_as_often_as_is_said() -> None:
    called: list[Tensor] = []
    (row,) = profiled(lambda: called.append(op.softmax(drawn(5, 6)).eval()), steps=4, warmup=2)
    assert len(called) == 6
    assert row.calls == 4


def test_a_profile_inside_another_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    inner: list[TileRow] = []

    def outer_step() -> None:
        op.softmax(drawn(5, 6)).eval()
        inner.extend(profiled(lambda: op.gelu(drawn(64, 6)).eval()))
        op.softmax(drawn(5, 6)).eval()

    rows = {row.operator: row for row in profiled(outer_step, warmup=0)}
    assert [row.operator for row in inner] == ["gelu"]
    assert inner[0].tiles is not None
    assert rows["softmax"].calls == 2
    assert rows["softmax"].tiles == 5
    assert rows["gelu"].tiles is None
    assert rows["gelu"].unavailable["tiles"] == NOT_TIMED
    assert timing_is_off()


def timing_is_off() -> bool:
    return pipeline._source is None and is_current(None)


def test_an_error_of_the_step_ends_timing() -> None:
    def failing() -> None:
        raise KeyError("of the user's")

    with pytest.raises(KeyError):
        graph.profile(failing)
    assert timing_is_off()


def test_several_threads_may_run_one_plan() -> None:
    def threads() -> None:
        started = [threading.Thread(target=lambda: op.softmax(drawn(35, 6)).eval()) for _ in range(4)]
        for each in started:
            each.start()
        for each in started:
            each.join()

    (row,) = profiled(threads)
    assert (row.calls, row.tiles) == (4, 35)


def test_a_session_inside_sees_the_same_kernels() -> None:
    sessions: list[profile.Session] = []

    def session_step() -> None:
        with profile.session() as session:
            op.softmax(drawn(5, 6)).eval()
        sessions.append(session)

    profiled(session_step)
    assert [record.operator for record in sessions[-1].records() if record.kind == "kernel"] == ["softmax"]


def test_work_on_a_stream_is_timed_too() -> None:
    compute = stream.create(name="compute")

    def streamed() -> None:
        op.softmax(drawn(5, 6)).eval(stream=compute).torch()

    (row,) = profiled(streamed)
    assert (row.operator, row.tiles) == ("softmax", 5)


def test_results_that_are_written_to_memory_of_the_user_are_timed_too() -> None:
    out = torch.empty(5, 6)
    (row,) = profiled(lambda: op.softmax(drawn(5, 6)).eval(out=out))
    assert (row.operator, row.tiles) == ("softmax", 5)
    assert torch.equal(out, op.softmax(drawn(5, 6)).torch())


def test_a_step_may_look_at_what_it_was_compiled_to() -> None:
    shown: list[str] = []
    expression = product()
    usual = expression.inspect("schedule")
    profiled(lambda: shown.append(product().inspect("schedule")))
    assert shown == [usual, usual]


def test_a_policy_of_the_step_holds_in_timed_builds() -> None:
    results: list[torch.Tensor] = []

    def strict() -> None:
        with numerics.policy("strict"):
            results.append(op.sum(drawn(300, 7), 0).torch().clone())

    with numerics.policy("strict"):
        usual = op.sum(drawn(300, 7), 0).torch().clone()
    profiled(strict)
    assert all(torch.equal(usual, each) for each in results)


def test_calls_of_libraries_have_no_tiles_and_say_why() -> None:
    rows = profiled(lambda: op.topk(drawn(20, 30), 3))
    (row,) = (row for row in rows if row.operator == "topk")
    assert row.tiles is None
    assert row.unavailable["tiles"] == NO_TILES
    assert row.latency_us > 0


def test_rates_are_those_of_calls() -> None:
    rows = {row.operator: row for row in profiled(lambda: op.topk(op.matmul(drawn(40, 30), drawn(30, 50)), 3), steps=2)}
    product = rows["matmul"]
    assert product.gflop_per_s == pytest.approx(2 * 40 * 30 * 50 / product.call_us / 1e3)
    assert product.bandwidth_gbps == pytest.approx(4 * (40 * 30 + 30 * 50 + 40 * 50) / product.call_us / 1e3)
    assert rows["topk"].bandwidth_gbps is not None


def test_what_is_unknown_says_why() -> None:
    for row in profiled(lambda: op.all_reduce(op.topk(op.matmul(drawn(9, 8), drawn(8, 7)), 3)[0]).eval()):
        unknown = {name for name in TileRow.__dataclass_fields__ if getattr(row, name) is None}
        assert unknown == row.unavailable.keys()
        assert all(row.unavailable.values())


def test_a_step_that_runs_nothing_has_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert graph.profile(lambda: None).rows == ()
    assert capsys.readouterr().out == "nothing ran\n"
    assert graph.profile(lambda: op.gelu(torch.empty(0, 5)).eval()).rows == ()


def test_the_text_is_the_specifications(capsys: pytest.CaptureFixture[str]) -> None:
    def both() -> None:
        op.matmul(drawn(40, 30), drawn(30, 64)).eval()
        attention().eval()

    result = graph.profile(both)
    product, attended, *rest = capsys.readouterr().out.splitlines()
    assert product.split()[0].startswith("MatMul[")
    assert attended.split()[0] == "FusedOp[FlashAttn]"
    for line in (product, attended):
        assert re.fullmatch(r"\S+ +latency=\S+µs +occupancy=\d+% +tiles=\d+( +clock=\d+%)?", line)
    assert "reading the clock takes" in "\n".join(rest)
    assert result.table["label"].to_list() == [row.label for row in result.rows]
    assert result.table["tiles"].to_list() == [row.tiles for row in result.rows]


def test_the_rewrites_behind_a_kernel_are_printed_under_the_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = profiled(lambda: op.gelu(op.matmul(drawn(9, 8), drawn(8, 7)) * 1.0))
    assert row.rewrites == ("drop-neutral-element", "fuse-contraction")
    _, trace = capsys.readouterr().out.split("rewrites\n")
    assert trace.split(maxsplit=1) == [row.label, ", ".join(row.rewrites) + "\n"]


def test_a_collective_of_a_process_that_is_alone_has_no_bandwidth() -> None:
    product, reduced = profiled(lambda: op.all_reduce(op.matmul(drawn(9, 8), drawn(8, 7))).eval())
    assert product.operator == "matmul"
    assert reduced.label == "AllReduce[identity]"
    assert reduced.bandwidth_gbps is None
    assert reduced.unavailable["bandwidth_gbps"] == ALONE


def test_a_collective_shows_its_bandwidth() -> None:
    records = [
        Record("collective", "all_reduce", 0, start, start + 15.0, collective_type="all_reduce", collective_bytes=24e6)
        for start in (1.0, 20.0)
    ]
    rows = rows_of(records, {}, ClockCost(8, 17), 0.5)
    assert str(TileProfile(rows, ClockCost(8, 17))) == "AllReduce[world]   latency=15µs   bandwidth=1.6TB/s"


@pytest.mark.parametrize("wrong", [None, 3, "step"])
def test_what_cannot_be_called_is_refused(wrong: object) -> None:
    with pytest.raises(ArgumentError, match=r"takes a function"):
        graph.profile(wrong)  # type: ignore[arg-type]


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ArgumentError, match="one step or more"):
        graph.profile(lambda: None, steps=0)


def test_timing_a_tile_costs_what_was_measured() -> None:
    cost = timing.clock_cost()
    assert 0 < cost.inside_ns <= cost.whole_ns


def test_labels_are_the_specifications() -> None:
    assert kernel_label(("matmul",), "tile=(128,128,64), unroll=4") == "MatMul[128x128x64]"
    assert kernel_label(("flash_attention",), "tile=(64,64)") == "FusedOp[FlashAttn]"
    assert kernel_label(("matmul", "gelu"), "tile=(64,64,64)") == "FusedOp[MatMul+Gelu]"
    assert kernel_label(("add", "mul", "exp", "sum", "sub"), "") == "FusedOp[Add+Mul+Exp+2 more]"
    assert kernel_label(("topk",), "") == "Topk"
    assert operator_name("all_reduce") == "AllReduce"


def test_records_that_were_dropped_leave_no_occupancy() -> None:
    times = TileTimes(workers=1)
    tile = (ctypes.c_int64 * WORKER_WORDS).from_address(times.address)
    for _ in range(2):
        tile[COUNT], tile[TOTAL], tile[SHORTEST], tile[LONGEST], tile[HEADER_WORDS] = 1, 900, 900, 900, 900
        times.collect()
    kernel = Record("kernel", "exp_0", 0, 0.0, 1.0, operator="exp", plan_id=7, schedule="tile=(1,64)")
    (whole,) = rows_of([kernel, kernel], {7: [times]}, ClockCost(8, 17), 1.0)
    assert (whole.calls, whole.tiles, whole.latency_us) == (2, 1, 0.9)
    assert whole.occupancy_pct == pytest.approx(90)
    (part,) = rows_of([kernel], {7: [times]}, ClockCost(8, 17), 1.0)
    assert part.occupancy_pct is None
    assert part.unavailable["occupancy_pct"] == LOST_RECORDS
    assert part.tiles == 1


def test_a_call_that_fails_is_no_part_of_the_next() -> None:
    times = TileTimes(workers=1)
    tile = (ctypes.c_int64 * WORKER_WORDS).from_address(times.address)

    def failing(frame: int) -> None:
        tile[COUNT], tile[TOTAL], tile[SHORTEST], tile[LONGEST] = 1, 5, 5, 5
        if frame:
            raise OSError("of a library")

    run = collecting(failing, [times])
    with pytest.raises(OSError, match="of a library"):
        run(1)
    run(0)
    assert (times.calls, times.count, times.total) == (2, 2, 10)


def test_single_durations_are_kept_within_bounds_and_all_are_summed() -> None:
    times = TileTimes(workers=2)
    rows = (ctypes.c_int64 * (2 * WORKER_WORDS)).from_address(times.address)
    calls = HELD // CAPACITY
    for call in range(1, calls + 1):
        for worker in range(2):
            part = worker * WORKER_WORDS
            rows[part + COUNT], rows[part + TOTAL] = CAPACITY + 5, call * (CAPACITY + 5)
            rows[part + SHORTEST] = rows[part + LONGEST] = call
            rows[part + HEADER_WORDS : part + WORKER_WORDS] = [call] * CAPACITY
        times.collect()
    assert (times.calls, times.count) == (calls, 2 * calls * (CAPACITY + 5))
    assert (times.shortest, times.longest) == (1, calls)
    assert times.total == sum(2 * call * (CAPACITY + 5) for call in range(1, calls + 1))
    held = times.durations()
    assert len(held) == HELD
    assert held.min() == calls // 2 + 1
    times.forget()
    assert (times.calls, times.count, len(times.durations()), times.shortest) == (0, 0, 0, None)
