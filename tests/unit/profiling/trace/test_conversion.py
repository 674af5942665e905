"""Sessions as columns: typed, complete, equal to the records, by start."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy
import polars
from hypothesis import given
from hypothesis import strategies as st

from tessera import profile
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.attribution import region_codes
from tessera.profiling.recording.events import RecordedEvent
from tessera.profiling.recording.recording import Recording
from tessera.profiling.recording.regions import Presence
from tessera.profiling.recording.totals import distinct
from tessera.profiling.ring.layout import RECORD_FIELDS, RECORD_WORDS
from tessera.profiling.ring.recorder import Drained
from tessera.profiling.trace import conversion
from tessera.profiling.trace.schema import UNTOLD_AXIS
from tessera.profiling.trace.table import COLUMNS
from tests import forked
from tests.unit.profiling.support import run, two_step_plan


def test_a_session_is_a_table_of_all_columns_by_start() -> None:
    plan = two_step_plan()
    with profile.session(record_shapes=True) as session:
        with profile.region("forward"):
            run(plan, 3)
        session.mark("done")
        profile.counter("loss", 0.5, unit="scalar")
    events = session.trace().events.collect()
    assert events.schema == polars.Schema(COLUMNS)
    assert events["start_ns"].is_sorted()
    assert dict(events["kind"].value_counts().iter_rows()) == {"kernel": 6, "region": 1, "mark": 1, "counter": 1}
    kernel = events.row(1, named=True)
    expected = {
        "kernel_name": "add_kernel",
        "operator": "add",
        "region": "forward",
        "flops": 16.0,
        "schedule": "tile=(16,)",
        "shapes": "[[16],[16]]",
        "plan_id": plan.number,
        "thread_id": threading.get_ident(),
        "pid": os.getpid(),
        "rank": 0,
        "device": "cpu",
        "stream_id": 0,
    }
    assert {name: kernel[name] for name in expected} == expected
    assert json.loads(events["shapes"][2]) == []


def test_the_trace_says_what_was_dropped_and_why_columns_are_null() -> None:
    with profile.session() as session:
        run(two_step_plan())
        instrumentation.note_unmeasured("cuda:0", 3)
    trace = session.trace()
    assert (trace.metadata["launched"], trace.metadata["recorded"]) == (5, 2)
    assert trace.metadata["dropped_reasons"]["not measured on cuda:0"] == 3
    assert json.loads(json.dumps(trace.metadata)) == trace.metadata
    events = trace.events.collect()
    assert "sm_occupancy" in trace.capability
    assert [name for name in trace.capability if events[name].null_count() < len(events)] == []


def test_records_and_columns_say_the_same() -> None:
    with profile.session() as session, profile.region("r"):
        run(two_step_plan(), 2)
        start = time.monotonic_ns()
        instrumentation.note("collective", "all_reduce", start, collective_type="all_reduce", collective_bytes=64.0)
    events = session.trace().events.collect()
    records = session.records()
    assert [record.kind for record in records] == events["kind"].to_list()
    assert [round(record.start_us * 1000) for record in records] == events["start_ns"].to_list()
    (collective,) = [record for record in records if record.kind == "collective"]
    assert (collective.collective_type, collective.collective_bytes, collective.region) == ("all_reduce", 64.0, "r")


def test_native_records_of_many_batches_are_whole_rows_by_start_column_after_column_in_memory() -> None:
    rows = numpy.arange(5000 * RECORD_WORDS).reshape(5000, RECORD_WORDS)
    rows[:, RECORD_FIELDS.index("device")] = 0
    rows[:7, RECORD_FIELDS.index("device")] = 1
    recording = Recording()
    for batch in (rows[4000:], rows[:7], rows[7:4000]):
        recording.take(Drained(batch, len(batch), 0, 0))
    found = recording.kernel_rows()
    rows[7:, 0] = 0  # the word that records of CPUs do not need any more
    assert (found == rows).all()
    assert found.flags.f_contiguous
    assert recording.take_rows().flags.c_contiguous


def test_an_empty_session_is_an_empty_table() -> None:
    with profile.session() as session:
        pass
    assert len(session.trace().events.collect()) == 0
    assert session.records() == []


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 5)), max_size=30))
def test_pairs_are_found_whatever_their_numbers(pairs: list[tuple[int, int]]) -> None:
    plan = numpy.array([pair[0] for pair in pairs], numpy.int64)
    step = numpy.array([pair[1] for pair in pairs], numpy.int64)
    found, codes = distinct(plan, step)
    assert [found[code] for code in codes] == pairs
    assert sorted(set(pairs)) == found


def test_finding_pairs_imports_nothing() -> None:
    code = """
import sys, numpy
from tessera.profiling.recording.totals import distinct
before = set(sys.modules)
distinct(numpy.array([3, 10**7]), numpy.array([0, 1]))
print(len(set(sys.modules) - before))
"""
    ended = forked.run(code)
    assert ended.stdout == "0\n", ended.stderr


_PRESENCES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.sampled_from(["a", "b", None])), max_size=12)


@given(_PRESENCES, st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 60)), max_size=20))
def test_regions_are_those_that_threads_were_seen_in_last(
    seen: list[tuple[int, int, str | None]], asked: list[tuple[int, int]]
) -> None:
    presences = [Presence(*each) for each in sorted(seen, key=lambda each: each[1])]
    threads, instants = (numpy.array([each[place] for each in asked], numpy.int64) for place in (0, 1))
    codes, names = region_codes(presences, threads, instants)
    for (thread, instant), code in zip(asked, codes, strict=True):
        names_so_far = [each.name for each in presences if each.thread == thread and each.instant_ns <= instant]
        assert names[code] == (names_so_far[-1] if names_so_far else None)


def test_why_a_collective_lacks_something_is_not_that_none_ran() -> None:
    recording = Recording()
    assert "no collective ran" in conversion.trace_of(recording).capability["collective_axis"]
    recording.events.append(RecordedEvent("collective", "all_reduce", 5, 9, 1, {"collective_type": "all_reduce"}))
    told = conversion.trace_of(recording).capability
    assert told["collective_axis"] == UNTOLD_AXIS
    assert "collective_type" not in told
