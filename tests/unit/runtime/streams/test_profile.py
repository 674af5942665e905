"""Work of streams in profiles: under the stream's name, with its copies, and complete at the session's end."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import numpy
import torch

from tessera import memcpy, op, profiler, stream
from tessera.profiling.recording import tracks
from tessera.profiling.recording.attribution import IssuedWork, Moment, asked, region_codes
from tessera.profiling.recording.regions import Presence
from tessera.profiling.recording.tracks import PROGRAM, Service, Track


def test_the_end_of_a_session_waits_for_what_was_enqueued() -> None:
    s = stream.create(name="compute")
    a = torch.randn(9, 9)
    gate = threading.Event()
    with profiler.session() as session:
        s.core.enqueue("hold", lambda: _wait(gate))
        y = op.matmul(a, a, stream=s)
        threading.Timer(0.02, gate.set).start()
    assert s.query()
    (record,) = [each for each in session.records() if each.kind == "kernel"]
    assert (record.operator, record.stream_name, record.stream_id) == ("matmul", "compute", s.number)
    torch.testing.assert_close(y.torch(), a @ a)


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def test_work_of_the_program_is_in_no_stream() -> None:
    with profiler.session() as session:
        op.exp(torch.zeros(4)).eval()
    assert [(each.stream_id, each.stream_name) for each in session.records()] == [(0, "")]


def test_copies_are_records_with_bytes_and_direction() -> None:
    s = stream.create(name="h2d")
    with profiler.session(activities=["memcpy", "gpu"]) as session:
        memcpy.async_(dst=torch.zeros(1000), src=torch.ones(1000), stream=s)
    (record,) = session.records()
    assert (record.kind, record.memcpy_dir, record.bytes, record.stream_name) == ("memcpy", "h2h", 4000, "h2d")
    assert record.memcpy_gbps is not None
    assert record.memcpy_gbps > 0
    assert record.duration_us > 0
    assert "memcpy_gbps" not in record.capability
    assert "memcpy" not in session.capability


def test_a_session_that_is_over_records_no_copies() -> None:
    s = stream.create()
    with profiler.session() as session:
        pass
    memcpy.async_(dst=torch.zeros(3), src=torch.ones(3), stream=s).wait()
    assert session.records() == []


def test_the_timeline_names_streams_that_are_gone(tmp_path: Path) -> None:
    x = torch.zeros(64, 64)
    with profiler.session() as session:
        for name in ("first", "second", "third"):
            s = stream.create(name=name)
            memcpy.async_(dst=x, src=torch.ones(64, 64), stream=s)
            op.matmul(x, x, stream=s).eval()
            thread = next(each for each in threading.enumerate() if each.name == name)
            del s
            gc.collect()
            thread.join(60)
            assert not thread.is_alive()
    events = json.loads(profiler.timeline(tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    shown = sorted((names[event["tid"]], event["name"]) for event in events if event["ph"] == "X")
    # The three threads had one number, if the system gave it out again.
    assert shown == [(name, what) for name in ("first", "second", "third") for what in ("matmul", "memcpy h2h")]
    copies = [event for event in events if event.get("cat") == "memcpy"]
    assert all(event["args"]["bytes"] == 4 * 64 * 64 and event["args"]["memcpy_dir"] == "h2h" for event in copies)
    assert len(session.records()) == 6


def test_work_belongs_to_the_region_that_enqueued_it() -> None:
    s = stream.create()
    a, x = torch.randn(6, 6), torch.zeros(6, 6)
    gate = threading.Event()
    with profiler.session() as session:
        s.core.enqueue("hold", lambda: _wait(gate))
        with profiler.region("outer"):
            op.exp(a, stream=s)
            with profiler.region("inner"):
                op.matmul(a, a, stream=s)
                memcpy.async_(dst=x, src=a, stream=s)
        op.neg(a, stream=s)
        gate.set()
    regions = {each.operator or each.kind: each.region for each in session.records() if each.kind != "region"}
    assert regions == {"exp": "outer", "matmul": "inner", "memcpy": "inner", "neg": ""}


def test_what_began_just_before_its_work_by_another_clock_is_part_of_it() -> None:
    presences = [Presence(1, 0, "r"), Presence(1, 100, None)]
    issued = [IssuedWork(7, 5_000, 9_000, Moment(1, 50)), IssuedWork(7, 20_000, 30_000, Moment(1, 500))]
    threads, starts = numpy.array([7, 7, 7, 7, 1, 2]), numpy.array([4_500, 8_000, 15_000, 25_000, 60, 60])
    codes, names = region_codes(presences, *asked(issued, threads, starts))
    assert [names[code] for code in codes] == ["r", "r", None, None, "r", None]


def test_a_thread_serves_one_stream_after_another() -> None:
    one, two = Track(1, "one"), Track(2, "two")
    services = {7: [Service(7, 100, one), Service(7, 200, PROGRAM), Service(7, 300, two)]}
    assert [tracks.track_at(services, 7, at) for at in (50, 100, 250, 300, 999)] == [PROGRAM, one, PROGRAM, two, two]
    assert tracks.track_at(services, 8, 100) == PROGRAM


def test_names_of_ended_threads_are_kept_by_the_session() -> None:
    a = torch.randn(5)

    def work() -> None:
        op.exp(a).eval()
        session.records()  # reads while the thread is alive

    with profiler.session() as session:
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
    (record,) = session.records()
    assert session.recording.thread_names[record.thread_id] == "loader"
