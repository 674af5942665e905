"""One kernel in full, stacks as a flame graph, what slices are coloured by, and what launched them."""

from __future__ import annotations

import csv
import io
import json

import polars
import pytest

from tessera import analyze
from tessera.profiling.analyses import kernels, operations
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer.pages import columns, works
from tests.unit.profiling.analyses.traces import collective, kernel, trace
from tests.unit.viewer.asking import answered, asked, viewer_of
from tests.unit.viewer.made import CEILINGS, STACKS, WORK, whole_run


def test_the_calls_of_a_row_are_those_of_its_work() -> None:
    run = whole_run()
    viewer = viewer_of(run)
    rows = answered(viewer, "/api/kernels?run=0")["rows"]
    for place, row in enumerate(rows):
        told = answered(viewer, f"/api/kernel?run=0&row={place}")
        assert sum(count for _, _, count in told["bins"]) == row[3] == len(told["calls"])
        assert sum(taken for _, taken in told["calls"]) / 1e3 == pytest.approx(row[4])
        assert told["bins"][0][0] == pytest.approx(min(taken for _, taken in told["calls"]))
        assert told["facts"]["fused"] == row[0]
        assert told["facts"]["stack"] in STACKS


def test_of_very_many_calls_the_slowest_of_each_few_are_told() -> None:
    taken = [10, 11, 300, *[10] * 1200]
    run = trace(*[kernel("k", 500 * at, each) for at, each in enumerate(taken)])
    told = answered(viewer_of(run), "/api/kernel?run=0&row=0")["calls"]
    assert len(told) <= 400
    assert max(told, key=lambda call: call[1]) == [1_000_000, 300.0]


def test_a_kernel_whose_shapes_are_known_has_the_call_that_tunes_it() -> None:
    shapes = json.dumps([[64, 32], [32, 16]])
    viewer = viewer_of(trace(kernel("matmul", 0, 3, shapes=shapes, dtype="fp32"), kernel("gelu", 9, 1)))
    told = answered(viewer, "/api/kernel?run=0&row=0")
    assert told["tune"] == 'autotune("matmul", shapes=[(64, 32), (32, 16)], dtype="fp32")'
    assert answered(viewer, "/api/kernel?run=0&row=1")["tune"] is None


@pytest.mark.parametrize("row", ["", "-1", "x", "5"])
def test_a_row_that_there_is_not_is_refused(row: str) -> None:
    assert asked(viewer_of(whole_run()), f"/api/kernel?run=0&row={row}")[0] == 400


@pytest.mark.parametrize("by", list(kernels.GROUPS))
def test_kernels_are_grouped_as_the_analyses_do(by: str) -> None:
    run = whole_run()
    told = answered(viewer_of(run), f"/api/kernels?run=0&by={by}")
    expected = kernels.grouped(run, by, ())
    assert [(row[0], row[1]) for row in told["rows"]] == expected.select(by, "calls").rows()


def test_a_region_narrows_every_table() -> None:
    run = whole_run()
    events = run.events.with_columns(
        polars.when(polars.col("rank") == 1).then(polars.lit("other")).otherwise("region").alias("region")
    )
    viewer = viewer_of(Trace(events.cast({"region": polars.Categorical()}), run.metadata))
    assert answered(viewer, "/api/kernels?run=0")["regions"] == ["other", "part 0"]
    assert sum(row[3] for row in answered(viewer, "/api/kernels?run=0&region=other")["rows"]) == 100


@pytest.mark.parametrize("question", ["roofline", "stalls", "memory", "collectives"])
def test_a_window_narrows_every_analysis(question: str) -> None:
    run = whole_run()
    span = polars.col("start_ns").is_between(50_000, 300_000, closed="left")
    narrowed = Trace(run.events.filter(span), run.metadata, run.capability)
    of_window = answered(viewer_of(run), f"/api/{question}?run=0&t0=50000&t1=300000")
    assert of_window == answered(viewer_of(narrowed), f"/api/{question}?run=0")
    assert of_window != answered(viewer_of(run), f"/api/{question}?run=0")


def test_a_table_comes_as_csv() -> None:
    viewer = viewer_of(whole_run())
    status, headers, body = asked(viewer, "/api/csv?run=0&table=collectives")
    assert status == 200
    assert headers["Content-Disposition"] == "attachment; filename=collectives.csv"
    rows = list(csv.reader(io.StringIO(body.decode())))
    assert len(rows) == 1 + len(analyze.collectives(whole_run()))
    assert rows[0][:2] == ["Collective", "Bytes"]
    assert asked(viewer, "/api/csv?run=0&table=overview")[0] == 404
    assert asked(viewer, "/api/csv?run=0&table=../meta")[0] == 404


def test_stacks_sum_to_the_kernels_that_they_made() -> None:
    run = whole_run()
    (source,) = answered(viewer_of(run), "/api/flame?run=0")["sources"]
    assert {row[0] for row in source["stacks"]} == set(STACKS)
    assert {row[1] for row in source["stacks"]} == {name for name, _, _ in WORK}
    taken = kernels.kernels(run).select(polars.col("dur_ns").sum()).collect().item()
    assert sum(row[2] for row in source["stacks"]) == taken
    assert sum(row[3] for row in source["stacks"]) == 200


def test_samples_of_stacks_are_a_flame_graph_of_their_own_and_no_counter() -> None:
    sample = {"kind": "sample", "kernel_name": "stack", "start_ns": 5, "dur_ns": 10_000_000, "value": 0.01}
    viewer = viewer_of(trace({**sample, "stack": "a;b"}, {**sample, "stack": "a;b"}, kernel("k", 0, 1)))
    (source,) = answered(viewer, "/api/flame?run=0")["sources"]
    assert source == {"title": "samples of py-spy", "stacks": [["a;b", "", 20_000_000, 2]], "total": 1}
    assert answered(viewer, "/api/series?run=0")["series"] == []


def test_without_stacks_it_is_said_how_to_get_some() -> None:
    told = answered(viewer_of(trace(kernel("k", 0, 1))), "/api/flame?run=0")
    assert told["sources"] == []
    assert "with_stack=True" in told["reason"]


def test_of_long_series_the_extremes_are_kept() -> None:
    values = [0.0] * 9000
    values[1234], values[7777] = 50.0, -3.0
    events = {
        "kind": ["counter"] * 9000,
        "kernel_name": ["loss"] * 9000,
        "start_ns": list(range(9000)),
        "value": values,
        "device": ["cpu"] * 9000,
    }
    (series,) = answered(viewer_of(Trace(frame(events).lazy())), "/api/series?run=0")["series"]
    assert (series["total"], len(series["at"]) <= 2000) == (9000, True)
    assert dict(zip(series["at"], series["values"], strict=True)).items() >= {1234: 50.0, 7777: -3.0}.items()


def test_works_have_the_least_time_that_the_ceilings_allow() -> None:
    run = whole_run()
    events = run.events.collect()
    numbers, told = works.works(events, run)
    peak = CEILINGS.compute[0].flop_per_s
    for row, number in zip(events.iter_rows(named=True), numbers, strict=True):
        if row["operator"] == "matmul":
            assert told[number]["least_us"] == pytest.approx(row["flops"] / peak * 1e6)
            assert told[number]["region"] == "part 0"
        elif row["kind"] != "kernel":
            assert told[number]["least_us"] is None


def test_the_first_of_a_correlation_launched_the_others_of_its_rank() -> None:
    events = frame(
        {
            "kind": ["kernel", "operator", "kernel", "operator", "kernel"],
            "start_ns": [50, 10, 60, 20, 70],
            "rank": [0, 0, 0, 1, 1],
            "correlation": [4, 4, 4, 4, None],
        }
    )
    order = polars.Series([1, 3, 0, 2, 4]).to_numpy()
    launches = works.launches(events, order)
    assert launches is not None
    assert launches.tolist() == [0, 0, 1, 1, 0]
    assert works.launches(events.with_columns(correlation=polars.int_range(polars.len())), order) is None


def test_points_of_the_roofline_have_their_bytes_by_memory_level() -> None:
    run = whole_run()
    traffic = polars.lit(json.dumps({"L1": 8e4, "DRAM": 0, "scratch": 5})).cast(polars.Categorical())
    viewer = viewer_of(Trace(run.events.with_columns(traffic=traffic), run.metadata))
    assert {str(point["levels"]) for point in answered(viewer, "/api/roofline?run=0")["points"]} == {"{'L1': 80000.0}"}
    assert {point["levels"] for point in answered(viewer_of(run), "/api/roofline?run=0")["points"]} == {None}


def test_how_late_each_rank_came_to_each_call() -> None:
    calls = [{**collective(at, 9, 8.0, rank=rank), "correlation": 1} for rank, at in ((0, 10), (1, 12), (2, 10))]
    calls.append({**collective(30, 9, 8.0, rank=0), "correlation": 2})
    ranks = {str(rank): {"uncertainty_ns": 500} for rank in range(3)}
    run = trace(*calls, metadata={"source": "tessera", "ranks": ranks})
    told = answered(viewer_of(run), "/api/heat?run=0")
    assert [(row["rank"], row["late_us"]) for row in told["arrivals"]] == [(0, 0), (2, 0), (1, 2)]
    assert told["clocks_us"] == 0.5


def test_events_that_are_odd_are_counted_by_what_is_odd_about_them() -> None:
    events = frame(
        {
            "kind": ["kernel", "kernel", "kernel", "counter", "counter"],
            "kernel_name": ["a", "b", "c\x1b[31m", "n", "n"],
            "start_ns": [0, 1, 2, 3, 4],
            "dur_ns": [None, -4, 5, None, None],
            "value": [None, None, None, float("nan"), 1.0],
        }
    )
    told = columns.odd(Trace(events.lazy()))
    assert told == {
        "total": 4,
        "reasons": {
            "without a duration": 1,
            "with a negative duration": 1,
            "with a value that is no number": 1,
            "with a name that is cut or has control characters": 1,
        },
    }
    assert columns.odd(whole_run()) == {"total": 0, "reasons": {}}


def test_kernels_are_grouped_by_operator_shape_and_the_line_that_made_them() -> None:
    lines = ["a.py:1 <module>;b.py:7 forward", "b.py:7 forward", "a.py:1 <module>;b.py:9 forward"]
    shapes = ["[[4,4]]", "[[8,4]]", "[[4,4]]"]
    rows = [
        kernel("matmul", 10 * at, 1 + at, stack=stack, shapes=shape)
        for at, (stack, shape) in enumerate(zip(lines, shapes, strict=True))
    ]
    viewer = viewer_of(trace(*rows))

    def told(by: str) -> list[list[object]]:
        return [row[:2] for row in answered(viewer, f"/api/kernels?run=0&by={by}")["rows"]]

    assert told("operator") == [["matmul", 3]]
    assert told("shape") == [["[[4,4]]", 2], ["[[8,4]]", 1]]
    assert sorted(told("line")) == [["b.py:7 forward", 2], ["b.py:9 forward", 1]]


def test_groups_beyond_the_first_and_groups_that_nothing_tells_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_ROWS", 2)
    viewer = viewer_of(trace(*[kernel(f"k{at}", 10 * at, 1 + at) for at in range(5)]))
    found = answered(viewer, "/api/kernels?run=0&by=kernel")
    assert [row[0] for row in found["rows"]] == ["k4", "k3"]
    assert found["notes"] == ["3 more groups take 0.006 ms, 40 %"]
    for by in ("shape", "line"):
        assert "recorded" in answered(viewer, f"/api/kernels?run=0&by={by}")["notes"][0]


def test_bytes_that_controllers_counted_are_a_level_of_their_own() -> None:
    run = whole_run()
    rates = {
        name: polars.lit(gbps, polars.Float32) for name, gbps in (("dram_read_gbps", 3.0), ("dram_write_gbps", 1.0))
    }
    points = answered(viewer_of(Trace(run.events.with_columns(**rates), run.metadata)), "/api/roofline?run=0")["points"]
    taken = (
        run.events.filter(polars.col("kind") == "kernel").group_by("operator", "flops").agg(polars.col("dur_ns").mean())
    )
    means = {(row["operator"], row["flops"]): row["dur_ns"] for row in taken.collect().iter_rows(named=True)}
    assert points
    for point in points:
        assert point["levels"] == {"DRAM, counted": pytest.approx(4 * means[point["kernel"], point["flops"]])}
