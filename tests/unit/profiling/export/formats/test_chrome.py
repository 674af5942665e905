"""The timeline file, read as Perfetto reads it."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tessera import profile
from tessera.errors import ProfileError
from tessera.profiling.export.formats import chrome
from tessera.profiling.trace.table import Trace, frame
from tests.unit.profiling.support import run, two_step_plan


def traced(path: Path, session: profile.Session) -> dict[str, Any]:
    file = profile.timeline(path)
    assert file == path
    assert session.end_ns is not None
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def busy_session() -> profile.Session:
    plan = two_step_plan()
    with profile.session(record_shapes=True) as session:
        with profile.region("outer"):
            run(plan, 3)
            with profile.region("inner"):
                run(plan, 3)
            session.mark("half")
        thread = threading.Thread(target=run, args=(plan, 5), name="helper")
        thread.start()
        run(plan, 5)
        thread.join()
        profile.counter("loss", 2.0)
    return session


def test_trace_events_are_the_first_key(tmp_path: Path) -> None:
    session = busy_session()
    traced(tmp_path / "trace.json", session)
    assert (tmp_path / "trace.json").read_text().startswith('{"traceEvents": [')


def test_slices_of_a_track_nest_or_are_disjoint(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", busy_session())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len({event["tid"] for event in slices}) == 2
    for one, other in itertools.combinations(slices, 2):
        if one["tid"] != other["tid"]:
            continue
        (a, b), (c, d) = ((round(1000 * each["ts"]), round(1000 * (each["ts"] + each["dur"]))) for each in (one, other))
        assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def test_kernels_regions_marks_and_counters_are_there(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", busy_session())["traceEvents"]
    kinds = [(event["ph"], event.get("cat")) for event in events]
    assert kinds.count(("X", "kernel")) == 2 * (3 + 3 + 5 + 5)
    assert kinds.count(("X", "region")) == 2
    assert kinds.count(("i", "mark")) == 1
    (counter,) = [event for event in events if event["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("loss", {"value": 2.0})
    inner = [event for event in events if event.get("args", {}).get("region") == "inner"]
    assert {event["name"] for event in inner} == {"add", "double"}
    assert inner[0]["args"]["shapes"] == [[16], [16]]
    assert inner[1]["args"]["fused"] == "double+cast"


def test_tracks_carry_the_names_of_their_threads_and_small_numbers(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", busy_session())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names) == [1, 2]
    assert names[1] == threading.current_thread().name


def test_file_accounts_for_every_kernel(tmp_path: Path) -> None:
    other = traced(tmp_path / "trace.json", busy_session())["otherData"]
    assert other["launched"] == other["recorded"] + other["dropped"] == 32
    assert sum(other["dropped_reasons"].values()) == other["dropped"]
    assert "0 to 100" in other["percentages"]
    assert "which CPUs do not have" in other["unavailable"]["sm_occupancy"]
    assert other["largest_edge_shift_us"] < 50


def test_exporter_writes_at_the_end_of_the_session(tmp_path: Path) -> None:
    with profile.session(exporters=[profile.chrome(tmp_path / "trace.json")]):
        run(two_step_plan())
        assert not (tmp_path / "trace.json").exists()
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) == 5


def test_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    busy_session()
    with pytest.raises(ProfileError, match="timeline could not be written"):
        profile.timeline(tmp_path / "no such folder" / "trace.json")
    with pytest.raises(ProfileError, match="summary could not be written"):
        profile.summary(tmp_path / "no such folder" / "summary.csv").export(busy_session().trace())


def test_slices_of_devices_say_their_device_and_stream_as_kineto_does(tmp_path: Path) -> None:
    events = {
        "kind": ["kernel", "kernel"],
        "kernel_name": ["on the host", "on the device"],
        "start_ns": [0, 10],
        "dur_ns": [5, 5],
        "device": ["cpu", "cuda:1"],
        "thread_id": [1, 1],
        "stream_id": [None, 7],
    }
    path = chrome.write(Trace(frame(events).lazy()), tmp_path / "trace.json")
    written = json.loads(path.read_text())
    told = {event["name"]: event["args"] for event in written["traceEvents"] if event["ph"] == "X"}
    assert "stream" not in told["on the host"]
    assert (told["on the device"]["device"], told["on the device"]["stream"]) == (1, 7)
    assert profile.read(path).events.collect()["device"].to_list() == ["cpu", "cuda:1"]


def test_times_have_the_format_s_own_unit(tmp_path: Path) -> None:
    assert "displayTimeUnit" not in traced(tmp_path / "trace.json", busy_session())
