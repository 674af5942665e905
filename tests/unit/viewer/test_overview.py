"""Where the time went: parts sum to the whole."""

from __future__ import annotations

import numpy
import polars
import pytest

from tessera.profiling.trace.table import Trace, frame
from tessera.viewer.pages.overview import PARTS, overview
from tests.unit.profiling.analyses.traces import collective, kernel, trace
from tests.unit.viewer.made import whole_run


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_those_of_every_nanosecond(seed: int) -> None:
    draw = numpy.random.default_rng(seed)
    kinds = draw.choice([*PARTS, "sample"], 60, p=[0.4, 0.2, 0.15, 0.15, 0.1])
    starts, taken = draw.integers(0, 300, 60), draw.integers(0, 12, 60)
    events = frame({"kind": kinds.tolist(), "start_ns": starts, "dur_ns": taken}).sort("start_ns")
    of = numpy.full(400, len(PARTS))
    for place, kind in reversed([*enumerate(PARTS)]):
        for start, length in zip(starts[kinds == kind], taken[kinds == kind], strict=True):
            of[start : start + length] = place
    for window in ((0, 400), (17, 203)):
        (rank,) = overview(Trace(events.lazy(), {}), window)["ranks"]
        expected = numpy.bincount(of[slice(*window)], minlength=len(PARTS) + 1)
        assert [round(1e6 * part) for part in rank["parts"]] == expected.tolist()


def test_ranks_one_after_the_other_and_events_out_of_order_give_the_same() -> None:
    run = whole_run()
    shuffled = run.events.sort("rank", "dur_ns", nulls_last=True)
    assert overview(Trace(shuffled, run.metadata))["ranks"] == overview(run)["ranks"]


def test_a_window_has_its_own_parts_and_the_steps_that_it_touches() -> None:
    run = whole_run()
    whole, part = overview(run), overview(run, (60_000, 120_000))
    assert part["window"] == [60_000, 120_000]
    assert [sum(rank["parts"]) for rank in part["ranks"]] == pytest.approx([0.06, 0.06])
    touched = [step for step in whole["steps"] if step["start_ns"] < 120_000 and step["end_ns"] > 60_000]
    assert 1 < len(touched) < len(whole["steps"])
    assert part["steps"] == touched


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
