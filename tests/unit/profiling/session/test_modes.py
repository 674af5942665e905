"""What sessions can be asked for: schedules, sums alone, samples, stacks, eager torch, and files at any end."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
import torch

from tessera import Tensor, op, profile
from tessera.errors import ArgumentError, ProfileError
from tessera.lazy import evaluation
from tessera.profiling.recording.windows import Windows
from tessera.profiling.report.operators import by_operator
from tessera.profiling.ring import recorder
from tessera.profiling.session import sessions
from tessera.profiling.session.steps import Schedule
from tessera.profiling.trace.table import Trace
from tests import forked
from tests.unit.profiling.support import run, script, two_step_plan


def test_a_schedule_says_what_happens_in_each_step() -> None:
    schedule = profile.schedule(wait=2, warmup=1, active=2, repeat=2)
    cycle = ["wait", "wait", "warmup", "active", "active"]
    assert [schedule.phase(step) for step in range(12)] == [*cycle, *cycle, "done", "done"]
    assert Schedule(active=1).phase(10**9) == "active"


@pytest.mark.parametrize("wrong", [{"active": 0}, {"wait": -1}, {"repeat": 1.5}])
def test_a_schedule_of_wrong_numbers_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="schedule"):
        profile.schedule(**wrong)


def test_what_is_no_schedule_is_refused_before_the_session_begins() -> None:
    with pytest.raises(ArgumentError, match="schedule=3"):
        profile.session(schedule=3)  # type: ignore[arg-type]


def test_windows_hold_what_began_while_they_were_open() -> None:
    windows = Windows()
    before = time.monotonic_ns() - 1
    windows.turn(True)
    windows.turn(True)
    inside = time.monotonic_ns()
    windows.turn(False)
    between = time.monotonic_ns()
    windows.turn(True)
    assert [windows.hold(instant) for instant in (before, inside, between, 2**62)] == [False, True, False, True]


def test_only_active_steps_are_kept() -> None:
    plan = two_step_plan()
    on = []
    with profile.session(schedule=profile.schedule(wait=1, warmup=1, active=1, repeat=2)) as session:
        for _ in range(8):
            with profile.region("train"):
                run(plan)
                on.append(recorder.recording())
                profile.counter("loss", 0.5)
            session.step()
    records = session.records()
    assert [record.kind for record in records].count("kernel") == 4
    assert [record.kind for record in records].count("region") == 2
    assert [record.kind for record in records].count("counter") == 2
    assert [record.kernel_name for record in records if record.kind == "mark"] == ["step 2", "step 5"]
    assert on == [False, True, True, False, True, True, False, False]
    assert session.launched == session.recorded == 4
    assert session.trace().metadata["schedule"] == {"wait": 1, "warmup": 1, "active": 1, "repeat": 2}


def test_nothing_is_noted_while_a_schedule_waits() -> None:
    with profile.session(schedule=profile.schedule(wait=1)) as session:
        dropped = op.exp(torch.ones(3))
        session.step()
        assert dropped.is_pending
    assert session.records() == []


def test_a_summary_keeps_sums_alone() -> None:
    plan = two_step_plan()
    with profile.session(mode="summary") as summary, profile.session() as timeline:
        run(plan, 50)
    assert (summary.launched, summary.recorded) == (100, 100)
    assert [record.kind for record in summary.records()] == []
    ours, full = by_operator(summary.recording.totals(), None), by_operator(timeline.recording.totals(), None)
    assert [(row.operator, row.calls, row.gflop) for row in ours] == [
        (row.operator, row.calls, row.gflop) for row in full
    ]
    for one, other in zip(ours, full, strict=True):
        assert one.total_ms == pytest.approx(other.total_ms, rel=1e-6)
    told = summary.trace().metadata["totals"]
    assert [(each["operator"], each["calls"]) for each in told] == [("add", 50), ("double", 50)]


@pytest.mark.parametrize("maker", [profile.chrome, profile.parquet, profile.rocprof_csv])
def test_an_exporter_that_gets_no_kernels_is_warned_of_and_its_file_says_why(
    maker: Callable[[Path], profile.Exporter], tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    with pytest.warns(UserWarning, match='Exporter: mode="summary" keeps no kernels'):
        summary = profile.session(mode="summary", exporters=[profile.summary(tmp_path / "sums.csv"), maker(path)])
    with summary:
        run(two_step_plan(), 3)
    if maker is not profile.rocprof_csv:  # which has no place for words
        found = profile.read(path)
        assert "keeps no kernels" in found.metadata["no_kernels"]
        assert sum(total["calls"] for total in found.metadata["totals"]) == 6


def test_no_warning_where_sums_are_all_that_is_written(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    profile.session(mode="summary", exporters=[profile.summary(tmp_path / "sums.csv")])
    profile.session(exporters=[profile.chrome(tmp_path / "trace.json")])
    assert [each for each in recwarn if "keeps no kernels" in str(each.message)] == []


def wait_for_ticks(session: profile.Session, count: int) -> None:
    """Waits until a session has read its samplers so often."""
    sampling, limit = session._sampling, time.monotonic() + 60
    assert sampling is not None
    while sampling.ticks < count:
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_samples_stand_beside_kernels(cache_dir: Path) -> None:
    with profile.session(activities=["cpu"], sample_interval_ms=2) as session:
        run(two_step_plan())
        wait_for_ticks(session, 6)  # of readings that lie too near one is left out
    samples = [record for record in session.records() if record.kind == "sample"]
    assert len({record.start_us for record in samples}) > 2
    assert all(record.value is not None for record in samples)
    metadata = session.trace().metadata["sampling"]
    assert (metadata["interval_ms"], metadata["ticks"] > 2) == (2, True)
    assert not [thread for thread in threading.enumerate() if thread.name == "tessera-sampling"]


def test_no_sample_is_older_than_its_session(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = sessions.flush

    def slowly() -> None:  # as results that were pending before the session
        computed()
        time.sleep(0.02)  # ten intervals, in which nothing is read

    monkeypatch.setattr(sessions, "flush", slowly)
    with profile.session(activities=["cpu"], sample_interval_ms=2) as session:
        wait_for_ticks(session, 3)
    starts = [record.start_us for record in session.records() if record.kind == "sample"]
    assert starts
    assert min(starts) >= 0


def test_a_session_that_does_not_begin_samples_nothing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("pending")

    monkeypatch.setattr(sessions, "flush", fail)
    session = profile.session(activities=["cpu"], sample_interval_ms=2)
    with pytest.raises(ValueError, match="pending"):
        session.__enter__()
    assert not session.active
    assert session._sampling is not None
    assert all(series.ended is not None for series in session._sampling._series)


def test_power_that_cannot_be_read_says_why(cache_dir: Path) -> None:
    with profile.session(activities=["power"]) as session:
        run(two_step_plan())
        wait_for_ticks(session, 3)
    trace = session.trace()
    powers = trace.events.collect()["power_w"].drop_nulls()
    assert len(powers) or trace.capability["power_w"]


def make_here() -> None:
    op.exp(torch.ones(3)).eval()


def test_kernels_have_the_stack_that_made_their_operator() -> None:
    with profile.session(with_stack=True) as session:
        make_here()
    (record,) = session.records()
    assert record.stack[-1].endswith("make_here")
    assert __file__ in record.stack[-1]
    assert not any("tessera/src" in frame or "/ops/" in frame for frame in record.stack)
    with profile.session() as plain:
        make_here()
    assert plain.records()[0].stack == ()


def test_eager_torch_operators_are_recorded_when_asked_for() -> None:
    x = torch.ones(5, 3)
    with profile.session(activities=["cpu", "torch"], record_shapes=True) as session, profile.region("eager"):
        x + x
        make_here()
    (added,) = [record for record in session.records() if record.operator == "add"]
    assert (added.kind, added.kernel_name, added.region) == ("operator", "aten.add.Tensor", "eager")
    assert added.shapes == ((5, 3), (5, 3))
    assert [record.operator for record in session.records() if record.kind == "kernel"] == ["exp"]
    with profile.session() as plain:
        x + x
    assert plain.records() == []


def test_start_and_stop_are_a_session_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    started = profile.start(exporters=[profile.chrome(path)])
    run(two_step_plan())
    stopped = profile.stop()
    assert stopped is started
    assert (stopped.recorded, path.exists()) == (2, True)
    with pytest.raises(ProfileError, match="no session was started"):
        profile.stop()


def test_the_log_for_tensorboard_is_written(tmp_path: Path) -> None:
    with profile.session(tensorboard_dir=tmp_path / "runs" / "exp1"):
        run(two_step_plan())
    (parquet,) = (tmp_path / "runs" / "exp1").iterdir()
    assert parquet.suffix == ".parquet"
    assert len(profile.read(tmp_path / "runs" / "exp1").events.collect()) == 2


@pytest.mark.parametrize("timeline", ["trace.trace.json", "trace.json", "trace.json.gz"])
def test_a_session_that_is_in_a_folder_as_columns_and_as_a_timeline_counts_once(tmp_path: Path, timeline: str) -> None:
    with profile.session(exporters=[profile.parquet(tmp_path / "trace.parquet"), profile.chrome(tmp_path / timeline)]):
        run(two_step_plan())
    found = profile.read(tmp_path)
    assert (len(found.events.collect()), found.metadata["launched"], len(found.metadata["ranks"])) == (2, 2, 1)


def test_an_error_in_the_block_is_raised_after_the_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"

    def fail() -> None:
        with profile.session(exporters=[profile.parquet(path)]):
            run(two_step_plan())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert len(profile.read(path).events.collect()) == 2


def test_records_are_kept_where_no_file_can_be_written(tmp_path: Path, cache_dir: Path) -> None:
    good = tmp_path / "good.parquet"
    exporters = [profile.chrome(tmp_path / "none" / "x.json"), profile.parquet(good)]
    with pytest.raises(ProfileError, match="could not be written") as raised, profile.session(exporters=exporters):
        run(two_step_plan())
    (kept,) = (cache_dir / "profiles").iterdir()
    assert str(kept) in str(raised.value)
    assert len(profile.read(kept).events.collect()) == len(profile.read(good).events.collect()) == 2


class Faulty:
    """An exporter of a user's, with a bug."""

    def export(self, trace: Trace) -> str:
        raise LookupError("my own bug")


def test_an_exporter_that_raises_anything_loses_nothing(tmp_path: Path, cache_dir: Path) -> None:
    good = tmp_path / "good.parquet"
    exporters = [Faulty(), profile.parquet(good)]
    with pytest.raises(ProfileError, match="LookupError: my own bug") as raised, profile.session(exporters=exporters):
        run(two_step_plan())
    (kept,) = (cache_dir / "profiles").iterdir()
    assert str(kept) in str(raised.value)
    assert len(profile.read(kept).events.collect()) == len(profile.read(good).events.collect()) == 2


def test_records_are_kept_where_the_log_for_tensorboard_has_no_folder(tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "file").touch()
    folder, good = tmp_path / "file" / "runs", tmp_path / "good.parquet"
    opened = profile.session(exporters=[profile.parquet(good)], tensorboard_dir=folder)
    with pytest.raises(ProfileError, match=r"could not be written to .*file/runs"), opened:
        run(two_step_plan())
    (kept,) = (cache_dir / "profiles").iterdir()
    assert len(profile.read(kept).events.collect()) == len(profile.read(good).events.collect()) == 2


def test_results_that_cannot_be_computed_at_the_end_leave_the_records(tmp_path: Path, cache_dir: Path) -> None:
    def fail(nodes: object) -> None:
        raise MemoryError("too large")

    path = tmp_path / "trace.parquet"
    session = profile.session(exporters=[profile.parquet(path)], sample_interval_ms=1000)

    def profiled() -> None:
        with session:
            run(two_step_plan())
            waiting.append(op.sinh(torch.zeros(3, 1, 4, 1, 5)))  # which has no plan yet

    waiting: list[Tensor] = []
    previous = evaluation.set_evaluator(fail)
    try:
        with pytest.raises(MemoryError, match="too large"):
            profiled()
    finally:
        evaluation.set_evaluator(previous)
    assert waiting[0].torch().count_nonzero() == 0
    assert not session.active
    assert len(profile.read(path).events.filter(polars.col("kind") == "kernel").collect()) == 2


def test_names_that_files_cannot_hold_are_mended_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with profile.session(exporters=[profile.chrome(path)]) as session, profile.region("half \ud800"):
        session.mark("\udc80")
        profile.counter("\udcff", 1.0, "\udcfe")
        for wrong in (None, 5, b"bytes"):
            with pytest.raises(ArgumentError, match="a name in a profile"):
                profile.region(wrong)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="a name in a profile"):
                session.mark(wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="a value in a profile is 'abc'"):
            profile.counter("loss", "abc")  # type: ignore[arg-type]
    assert sorted(each.kernel_name for each in session.records()) == ["?", "?", "half ?"]
    assert len(profile.read(path).events.collect()) == 3


def test_where_records_are_kept_is_a_note_on_the_programs_own_error(tmp_path: Path, cache_dir: Path) -> None:
    def fail() -> None:
        with profile.session(exporters=[profile.parquet(tmp_path / "none" / "x")]):
            run(two_step_plan())
            raise KeyError("mine")

    with pytest.raises(KeyError) as raised:
        fail()
    (kept,) = (cache_dir / "profiles").iterdir()
    assert str(kept) in raised.value.__notes__[0]


def recorded_by(program: str, records: int) -> Any:
    """What a program prints, whose process has a ring of so many records."""
    head = "import threading, time\nfrom tessera import profile\nfrom tessera.profiling.ring import recorder\n"
    head += "from tests.unit.profiling.support import run, two_step_plan\n"
    environment = {**os.environ, "TESSERA_PROFILE_RECORDS": str(records), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = forked.run(head + textwrap.dedent(program), environment=environment, warm=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_ring_is_drained_before_it_overflows() -> None:
    counts = recorded_by(
        """
        plan = two_step_plan()
        with profile.session() as session:
            for _ in range(12):
                run(plan, 8)
                deadline = time.monotonic() + 60
                while recorder.ring().backlog >= 8 and time.monotonic() < deadline:
                    time.sleep(0.005)
        print([session.launched, session.recorded])
        """,
        records=64,
    )
    assert counts == [192, 192]


def test_conservation_over_sessions_with_threads_and_bursts() -> None:
    counts = recorded_by(
        """
        plan, counts = two_step_plan(), []
        for _ in range(10):
            with profile.session() as session:
                threads = [threading.Thread(target=run, args=(plan, 100)) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert len(session.records()) == session.recorded
            counts.append([session.launched, session.recorded, session.dropped])
        print(counts)
        """,
        records=128,
    )
    assert [launched for launched, _, _ in counts] == [600] * 10
    assert [recorded + dropped for _, recorded, dropped in counts] == [600] * 10
    assert any(dropped for _, _, dropped in counts)


def test_a_session_left_open_is_exported_at_exit(tmp_path: Path, cache_dir: Path) -> None:
    done = script(
        f"""
        import torch
        from tessera import Tensor, op, profile
        profile.start(exporters=[profile.parquet({str(tmp_path / "open.parquet")!r})])
        op.exp(torch.ones(3)).eval()
        op.tanh(torch.ones(3))
        """,
        cache_dir,
    )
    assert done.returncode == 0, done.stderr
    assert profile.read(tmp_path / "open.parquet").events.collect()["operator"].to_list() == ["exp", "tanh"]


def test_a_fork_starts_without_the_session(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    reading, writing = os.pipe()
    session = profile.session(exporters=[profile.parquet(path)])
    session.__enter__()
    run(two_step_plan())
    child = os.fork()
    if child == 0:
        try:
            said = [session.active, sessions.count(), recorder.recording()]
            with pytest.warns(UserWarning, match="this fork of it"):
                session.__exit__(None, None, None)
            os.write(writing, json.dumps([*said, path.exists()]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(reading, 100)) == [False, 0, False, False]
    run(two_step_plan())
    session.__exit__(None, None, None)
    os.close(reading)
    os.close(writing)
    assert len(profile.read(path).events.collect()) == 4
