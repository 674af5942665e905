"""Where the time went: parts sum to the whole."""

from __future__ import annotations

import numpy
import polars
import pytest

from tessera.profiling.trace.table import Trace, frame
from tessera.viewer.overview import covered, overview
from tests.unit.profiling.analyses.traces import collective, kernel, trace
from tests.unit.viewer.made import whole_run


def test_covered_time_counts_overlaps_once() -> None:
    union = covered(numpy.array([10, 0, 12, 30]), numpy.array([20, 5, 15, 31]))
    assert union.starts.tolist() == [0, 10, 30]
    assert union.until(numpy.array([-1, 0, 3, 7, 15, 25, 99])).tolist() == [0, 0, 3, 5, 10, 15, 16]


def test_collectives_and_copies_count_where_nothing_ran_beside_them() -> None:
    copied = {"kind": "memcpy", "kernel_name": "copy", "start_ns": 35_000, "dur_ns": 10_000}
    found = overview(trace(kernel("a", 0, 20), collective(10, 20, 8.0), copied, metadata={"duration_ns": 100_000}))
    assert found["window"] == [0, 100_000]
    (rank,) = found["ranks"]
    assert dict(zip(found["parts"], rank["parts"], strict=True)) == pytest.approx(
        {
            "kernels": 0.02,
            "collectives exposed": 0.01,
            "copies exposed": 0.01,
            "eager operators": 0.0,
            "idle": 0.06,
        }
    )


def test_parts_of_ranks_and_steps_sum_to_the_whole() -> None:
    found = overview(whole_run())
    length = (found["window"][1] - found["window"][0]) / 1e6
    assert [sum(rank["parts"]) for rank in found["ranks"]] == pytest.approx([length, length])
    assert (found["kernels"], len(found["ranks"]), len(found["steps"])) == (200, 2, 20)
    assert found["steps_from"] == "session.step()"
    for step in found["steps"]:
        assert sum(step["parts"]) == pytest.approx((step["end_ns"] - step["start_ns"]) / 1e6)


def test_without_marks_the_outermost_regions_are_the_steps() -> None:
    run = whole_run()
    found = overview(Trace(run.events.filter(polars.col("kind") != "mark"), run.metadata))
    assert found["steps_from"] == "region step"
    assert len(found["steps"]) == 20


def test_an_empty_trace_is_idle() -> None:
    found = overview(Trace(frame({}).lazy(), {"duration_ns": 5000}))
    assert (found["window"], found["ranks"], found["kernels"]) == ([0, 5000], [], 0)
