"""Chrome traces read back: Tessera's own, torch.profiler's, others', and files that are damaged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import polars
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tessera.errors import ProfileError
from tessera.profiling.export.chrome_facts import COUNTERS, FACTS
from tessera.profiling.export.formats import chrome
from tessera.profiling.readers import json_events, spool
from tessera.profiling.readers.json_events import EventFile
from tessera.profiling.trace import reading
from tessera.profiling.trace.table import COLUMNS, Trace, frame

SCHEMA = {
    **dict.fromkeys(("name", "ph"), polars.String()),
    "ts": polars.Float64(),
    "args": polars.Struct({"text": polars.String(), "number": polars.Float64()}),
}


def made(count: int, **columns: Any) -> Trace:
    """Kernels that run one after the other, with more columns."""
    given = {
        "kind": ["kernel"] * count,
        "kernel_name": [f"kernel {index % 3}" for index in range(count)],
        "operator": [("matmul", "softmax", "exp")[index % 3] for index in range(count)],
        "start_ns": numpy.arange(count) * 2000,
        "dur_ns": [1001 + index % 7 for index in range(count)],
        "rank": [0] * count,
        "pid": [4711] * count,
        "thread_id": [140_000_000_000_000] * count,
        "stream_id": [0] * count,
        "device": ["cpu"] * count,
        **columns,
    }
    about = {"source": "tessera", "launched": count, "recorded": count, "plans": {"3": {"x": 1}}, "thread_names": {}}
    return Trace(frame(given).lazy(), about, {"temp_c": "no sensor"})


def texts(events: polars.DataFrame) -> polars.DataFrame:
    """With labels as text: categories of two frames are not compared."""
    return events.with_columns(polars.col(polars.Categorical).cast(polars.String))


def round_trip(given: Trace, path: Path) -> polars.DataFrame:
    read = reading.read(chrome.write(given, path))
    return read.events.collect()


@pytest.mark.parametrize("count", [0, 1, 3, 10_003])
def test_a_trace_that_was_written_is_read_as_it_was(tmp_path: Path, count: int) -> None:
    given = made(
        count,
        flops=[1e9 * (index % 3) for index in range(count)],
        shapes=["[[2,3],[3]]"] * count,
        fused=["matmul+gelu"] * count,
        plan_id=[index % 3 for index in range(count)],
        sm_occupancy=[0.5 if index % 2 else None for index in range(count)],
        correlation=list(range(count)),
    )
    read = reading.read(chrome.write(given, tmp_path / "trace.json"))
    assert_frame_equal(texts(read.events.collect()), texts(given.events.collect()))
    assert {name: read.metadata[name] for name in ("launched", "plans", "source")} == {
        "launched": count,
        "plans": {"3": {"x": 1}},
        "source": "tessera",
    }
    assert read.capability["temp_c"] == "no sensor"


def test_every_kind_of_event_comes_back(tmp_path: Path) -> None:
    events = frame(
        {
            "kind": ["region", "memcpy", "collective", "operator", "mark", "counter", "counter", "sample", "sample"],
            "kernel_name": ["step", "copy", "nccl", "aten::mm", "half", "loss", "rate", "power_w", "throttle_reason"],
            "start_ns": [0, 10, 20, 40, 50, 60, 70, 80, 90],
            "dur_ns": [100, 5, 10, 5, 0, 0, 0, 0, 0],
            "pid": [7] * 9,
            "thread_id": [1, 1, None, 1, 1, None, None, None, None],
            "stream_id": [0, 2, 7, 0, 0, 0, 0, 0, 0],
            "device": ["cpu", "cpu", "cuda:0", "cpu", "cpu", "cpu", "cpu", "cuda:0", "cuda:0"],
            "bytes": [None, 4096.0, *[None] * 7],
            "memcpy_dir": [None, "h2d", *[None] * 7],
            "collective_type": [None, None, "all_reduce", *[None] * 6],
            "collective_bytes": [None, None, 134217728.0, *[None] * 6],
            "collective_overlap_pct": [None, None, 46.0, *[None] * 6],
            "value": [*[None] * 5, 2.5, 10.0, 71.5, 4.0],
            "unit": [*[None] * 6, "token/s", "W", None],
            "throttle_reason": [*[None] * 8, "power_cap"],
        }
    )
    read = round_trip(Trace(events.lazy(), {"source": "tessera"}), tmp_path / "trace.json")
    assert_frame_equal(texts(read), texts(events))
    lines = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (collective,) = [event for event in lines if event.get("cat") == "collective"]
    assert {"bytes": 134217728, "overlap_pct": 46.0}.items() <= collective["args"].items()


def test_an_event_of_a_long_trace_takes_few_bytes(tmp_path: Path) -> None:
    count = 20_000
    facts = {
        "flops": [2.0**30 * (index % 3) for index in range(count)],
        "schedule": ["tile=(128,128,64), pipeline_depth=3"] * count,
    }
    values = numpy.random.default_rng(0).random((5, count))
    names = ("sm_occupancy", "l2_hit_rate", "tc_util_pct", "dram_read_gbps", "dram_write_gbps")
    scales = (1, 1, 100, 3000, 3000)
    counters = {name: scale * row for name, scale, row in zip(names, scales, values, strict=True)}
    bare = chrome.write(made(count, **facts), tmp_path / "bare.json")
    counted = chrome.write(made(count, **facts, **counters), tmp_path / "counted.json")
    assert bare.stat().st_size / count <= 110
    assert counted.stat().st_size / count <= 220


def test_no_column_is_forgotten() -> None:
    of_events = {"kind", "start_ns", "dur_ns", "correlation", "value", "unit"}
    of_tracks = {"rank", "pid", "thread_id", "stream_id", "stream_name", "device"}
    assert {*FACTS, *COUNTERS, *of_events, *of_tracks} == set(COLUMNS)


def test_a_packed_file_is_smaller_and_reads_the_same(tmp_path: Path) -> None:
    given = made(2000)
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    assert_frame_equal(texts(round_trip(given, plain)), texts(round_trip(given, packed)))
    assert packed.stat().st_size < plain.stat().st_size / 5
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_long_traces_wait_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = made(5000, flops=[float(index % 3) for index in range(5000)])
    path = chrome.write(given, tmp_path / "trace.json")
    monkeypatch.setattr(EventFile.__init__, "__defaults__", (1 << 16,))
    monkeypatch.setattr(spool.Spool.__init__, "__defaults__", (700,))
    read = reading.read(path).events
    assert "PARQUET" in read.explain().upper()
    assert_frame_equal(texts(read.collect()), texts(given.events.collect()))


@pytest.mark.parametrize("own", [True, False])
def test_no_more_than_one_piece_of_a_file_is_held(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    if own:
        chrome.write(made(5000), path)
    else:
        lines = ",\n".join(f'{{"ph":"X","name":"a","pid":1,"tid":1,"ts":{start},"dur":1}}' for start in range(5000))
        path.write_text(f'{{"traceEvents": [\n{lines}\n]}}')
    happened: list[str] = []
    tables, add = EventFile.tables, spool.Spool.add

    def read(self: EventFile) -> Iterator[polars.DataFrame]:
        for table in tables(self):
            happened.append("read")
            yield table

    def taken(self: spool.Spool, events: polars.DataFrame) -> None:
        happened.append("taken")
        add(self, events)

    monkeypatch.setattr(EventFile, "tables", read)
    monkeypatch.setattr(spool.Spool, "add", taken)
    monkeypatch.setattr(EventFile.__init__, "__defaults__", (1 << 14,))
    reading.read(path)
    assert len(happened) > 8
    assert happened == ["read", "taken"] * (len(happened) // 2)


def test_a_trace_of_torch_profiler_is_read(tmp_path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
    with profiler, torch.profiler.record_function("forward"):
        torch.softmax(torch.ones(8, 16) @ torch.ones(16, 8), 0)
    profiler.export_chrome_trace(str(tmp_path / "kineto.json"))
    found = reading.read(tmp_path / "kineto.json")
    assert found.metadata["source"] == "kineto"
    assert isinstance(found.metadata["ranks"]["0"]["start_unix_ns"], int)
    rows = {(row["kind"], row["kernel_name"]): row for row in found.events.collect().iter_rows(named=True)}
    region, product = rows["region", "forward"], rows["operator", "aten::mm"]
    assert json.loads(product["shapes"]) == [[8, 16], [16, 8]]
    assert region["start_ns"] <= product["start_ns"]
    assert product["start_ns"] + product["dur_ns"] <= region["start_ns"] + region["dur_ns"]
    assert region["thread_id"] == product["thread_id"]
    assert rows["sample", "[memory]"]["unit"] == "B"
    written = json.loads((tmp_path / "kineto.json").read_text())["traceEvents"]
    operators = [event for event in written if event.get("cat") == "cpu_op"]
    assert len(operators) == len(found.events.filter(polars.col("kind") == "operator").collect())
    assert sum(event["dur"] for event in operators) * 1000 == pytest.approx(
        found.events.filter(polars.col("kind") == "operator").select("dur_ns").sum().collect().item()
    )


def test_kernels_copies_and_collectives_of_a_gpu_are_told_apart(tmp_path: Path) -> None:
    # Written by the form that Kineto's output has on a GPU (torch 2.13, libkineto/src/output_json.cpp).
    def event(cat: str, name: str, **told: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": 5.5, "dur": 2.25, "args": told}

    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        event("cuda_runtime", "cudaLaunchKernel", correlation=9),
        event("kernel", "gemm", device=0, stream=7, correlation=9, **{"est. achieved occupancy %": 62}),
        event(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            device=0,
            stream=7,
            bytes=4096,
            **{"memory bandwidth (GB/s)": 12.5},
        ),
        event("kernel", reduce, device=0, stream=20, dtype="BFloat16", **{"In msg nelems": 1024}),
        event("kernel", "nccl", device=0, stream=20, dtype="Float", **{"Collective name": "_allgather_base"}),
        {"ph": "B", "name": "left out", "pid": 0, "tid": 7, "ts": 1},
    ]
    path = tmp_path / "rank3.json"
    path.write_text(
        json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events})
    )
    found = reading.read(path)
    launch, kernel, copy, reduced, gathered = found.events.collect().iter_rows(named=True)
    assert (launch["kind"], kernel["kind"], copy["kind"]) == ("operator", "kernel", "memcpy")
    assert launch["correlation"] == kernel["correlation"] == 9
    assert (kernel["device"], kernel["stream_id"], kernel["rank"]) == ("cuda:0", 7, 3)
    assert (kernel["sm_occupancy"], kernel["dur_ns"]) == (pytest.approx(0.62), 2250)
    assert (copy["memcpy_dir"], copy["memcpy_gbps"], copy["bytes"]) == ("h2d", 12.5, 4096.0)
    assert (reduced["kind"], reduced["collective_type"], reduced["collective_algorithm"]) == (
        "collective",
        "all_reduce",
        "ring",
    )
    assert (reduced["collective_bytes"], gathered["collective_type"]) == (2048.0, "all_gather")
    assert found.metadata["unmatched"] == {"begin without end": 1}


def test_the_example_of_the_specification_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [{ "name": "gemm", "ph": "X", "ts": 12345, "dur": 321, "cat": "kernel",'
        ' "args": { "sm_occupancy": 0.71, "tc_util_pct": 0.83 } },'
        ' { "name": "all_reduce", "ph": "X", "ts": 12400, "dur": 210, "cat": "collective",'
        ' "args": { "bytes": 134217728, "overlap_pct": 0.46 } }]}'
    )
    kernel, collective = reading.read(path).events.collect().iter_rows(named=True)
    assert (kernel["kernel_name"], kernel["dur_ns"]) == ("gemm", 321_000)
    assert (kernel["sm_occupancy"], kernel["tc_util_pct"]) == (pytest.approx(0.71), pytest.approx(0.83))
    assert (collective["collective_type"], collective["collective_bytes"]) == ("all_reduce", 134217728.0)
    assert collective["collective_overlap_pct"] == pytest.approx(0.46)
    assert collective["start_ns"] - kernel["start_ns"] == 55_000


def read_events(path: Path, piece: int) -> list[dict[str, Any]]:
    return [row for table in EventFile(path, lambda _: SCHEMA, piece).tables() for row in table.iter_rows(named=True)]


NASTY = st.text(st.sampled_from('ab"\\{}[],: \n\u00e9\U0001f600'), max_size=12)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"name": NASTY, "ph": st.sampled_from("XC")},
        optional={
            "ts": st.integers(0, 2**40) | st.floats(0, 1e12),
            "args": st.fixed_dictionaries(
                {}, optional={"text": NASTY, "number": st.integers(), "else": st.lists(st.just({"a": 1}))}
            ),
        },
    ),
    max_size=8,
)


@given(EVENTS, st.sampled_from([None, 1]), st.integers(1, 64), st.booleans(), NASTY)
def test_any_events_are_read_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, Any]],
    indent: int | None,
    piece: int,
    bare: bool,
    tail: str,
) -> None:
    path = tmp_path_factory.mktemp("drawn") / "trace.json"
    path.write_text(
        json.dumps(events if bare else {"before": [{}], "traceEvents": events, "after": tail}, indent=indent)
    )
    read = read_events(path, piece)
    assert [row["name"] for row in read] == [event["name"] for event in events]
    for row, event in zip(read, events, strict=True):
        told = event.get("args", {})
        assert row["ts"] == (None if "ts" not in event else pytest.approx(event["ts"]))
        assert row["args"]["text"] == told.get("text") if row["args"] else not told.get("text")
        assert row["series"] is None if event["ph"] == "X" else json.loads(row["series"] or "null") == event.get("args")


@given(EVENTS.filter(bool), st.data())
def test_a_file_that_is_cut_off_is_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    whole = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ProfileError, match=r"at byte \d+"):
        read_events(path, 16)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"traceEvents": [{"ph": "X", "name": nope}, {"ph": "X"}]}' + " " * 100, "an event is damaged.*at byte 37"),
        ('{"traceEvents": [{"ph": "X", "ts": ' + "9" * 6000 + "}]}", "an event is damaged.*digits.*at byte 17"),
        (
            '{"traceEvents": [{"ph": "C", "args": {"a": ' + "9" * 6000 + '}}, {"ph": "C"}]}',
            "an event is damaged.*digits",
        ),
        ('{"traceEvents": [3, {"ph": "X"}]}', "an event is no object, at byte 17"),
        ('{"traceEvents": [{"ph": "X", "a": ' + "[" * 100_000 + "]" * 100_000 + "}]}", "nested too deeply"),
        ('{"traceEvents": [{"ph": "X"}], "a": }', "keys beside traceEvents are damaged"),
        ('[{"ph": "X"}] and more', "something follows"),
        ('{"traceEvents": [{"ph": "X", "name": "a"} {"ph": "X"}]}', "a comma is missing after an event, at byte 41"),
    ],
)
def test_damage_is_an_error_that_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=said):
        reading.read(path)


def test_an_endless_event_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "LONGEST_EVENT", 1 << 16)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "name": "' + "x" * (1 << 18) + '"}]}')
    with pytest.raises(ProfileError, match="an event is longer than"):
        read_events(path, 1 << 12)


def test_packed_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = chrome.write(made(3000), tmp_path / "trace.json.gz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ProfileError, match="damaged or cut off"):
        reading.read(path)


def test_the_columns_of_a_read_trace_are_those_of_every_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    assert dict(reading.read(path).events.collect_schema()) == dict(COLUMNS)
