"""Packed slices hold what was recorded, whatever the times are."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy
import polars
from numpy.typing import NDArray

from tessera.profiling.export.chrome_facts import SLICES
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer.pages import columns
from tests.unit.viewer.made import whole_run


def unpacked(body: bytes) -> tuple[dict[str, Any], dict[str, NDArray[numpy.int64]]]:
    """The head and the columns, as a page reads them."""
    assert body[:4] == columns.MAGIC
    (length,) = struct.unpack_from("<I", body, 4)
    head = json.loads(body[8 : 8 + length])
    at, found = 8 + length, {}
    for name, about in head["columns"].items():
        made = numpy.zeros(head["n"], numpy.int64)
        for place, size in enumerate(about["sizes"]):
            plane = numpy.frombuffer(zlib.decompress(body[at : at + size]), numpy.uint8)
            made += plane.astype(numpy.int64) << 8 * place
            at += size
        for row, value in about["escapes"]:
            made[row] = value
        found[name] = made
    assert at == len(body)
    return head, found


def starts(head: dict[str, Any], found: dict[str, NDArray[numpy.int64]]) -> NDArray[numpy.int64]:
    lanes = [slice(lane["first"], lane["first"] + lane["count"]) for lane in head["lanes"]]
    return numpy.concatenate([found["start"][own].cumsum() for own in lanes])


def events(**given: list[Any]) -> Trace:
    return Trace(frame({"kind": ["kernel"] * len(given["start_ns"]), **given}).lazy())


def test_all_slices_are_there_with_their_times_names_and_kinds() -> None:
    trace = whole_run()
    recorded = trace.events.with_row_index("row").collect()
    body, rows = columns.packed(trace)
    head, found = unpacked(body)
    ours = recorded[rows]
    assert head["summed"] == 0
    assert head["n"] == head["total"] == len(recorded.filter(polars.col("kind").is_in(SLICES)))
    assert starts(head, found).tolist() == ours["start_ns"].to_list()
    assert head["shift_us"] == 0
    assert found["duration"].tolist() == ours["dur_ns"].to_list()
    names = [head["names"][code] for code in found["name"]]
    assert names == [operator or name for operator, name in ours.select("operator", "kernel_name").rows()]
    assert [head["kinds"][code] for code in found["kind"]] == ours["kind"].to_list()
    assert [(lane["rank"], lane["count"]) for lane in head["lanes"]] == [(0, 200), (1, 200)]
    assert len(head["marks"]) == 40


def test_depth_is_the_number_of_slices_around() -> None:
    trace = events(start_ns=[0, 0, 10, 10, 50, 90, 100], dur_ns=[100, 40, 20, 0, 40, 10, 5])
    _, found = unpacked(columns.packed(trace)[0])
    assert found["depth"].tolist() == [0, 1, 2, 3, 1, 1, 0]


def test_gaps_and_durations_beyond_32_bits_are_kept() -> None:
    far = 1 << 45
    trace = events(start_ns=[-5, 0, far], dur_ns=[2, 1 << 33, (1 << 32) - 1])
    head, found = unpacked(columns.packed(trace)[0])
    assert starts(head, found).tolist() == [-5, 0, far]
    assert found["duration"].tolist() == [2, 1 << 33, (1 << 32) - 1]


def test_of_too_many_slices_the_longest_are_kept_and_the_others_summed() -> None:
    taken = [1, 400, *[2] * 30]
    trace = events(start_ns=list(range(0, 64_000, 2000)), dur_ns=taken)
    head, found = unpacked(columns.packed(trace, most=10)[0])
    assert (head["total"], head["summed"]) == (32, 31)
    assert found["duration"].sum() == sum(taken)
    assert [lane["label"].endswith(columns.SHORTER) for lane in head["lanes"]] == [True, False]
    assert head["lanes"][1]["count"] == 1


def test_a_window_has_what_touches_it_one_by_one() -> None:
    trace = events(start_ns=[0, 10, 20, 30], dur_ns=[9, 4, 2, 3])
    body, rows = columns.packed(trace, most=3, window=(5, 30))
    head, found = unpacked(body)
    assert (head["n"], head["total"], head["summed"]) == (3, 3, 0)
    assert rows.tolist() == [0, 1, 2]
    assert found["duration"].tolist() == [9, 4, 2]


def test_an_empty_trace_has_no_lanes() -> None:
    head, _ = unpacked(columns.packed(Trace(frame({}).lazy()))[0])
    assert (head["n"], head["lanes"], head["names"], head["marks"]) == (0, [], [], [])


def test_durations_that_are_none_or_negative_are_drawn_as_instants() -> None:
    _, found = unpacked(columns.packed(events(start_ns=[0, 5], dur_ns=[None, -3]))[0])
    assert found["duration"].tolist() == [0, 0]
