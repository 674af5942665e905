"""Slices of Chrome traces whose begin and end are events of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars
import pytest

from tessera.profiling.readers import json_events
from tessera.profiling.trace import reading
from tessera.profiling.trace.table import Trace


def half(ph: str, ts: float | None, name: str | None = None, **told: Any) -> dict[str, Any]:
    given = {"ph": ph, "ts": ts, "name": name, "pid": 1, "tid": 1, **told}
    return {key: value for key, value in given.items() if value is not None}


def read(path: Path, *events: dict[str, Any]) -> Trace:
    path.write_text(json.dumps({"traceEvents": events}))
    return reading.read(path)


def slices(found: Trace) -> list[tuple[str, int, int]]:
    rows = found.events.select(polars.col("kernel_name").cast(polars.String), "start_ns", "dur_ns").collect()
    return rows.rows()


def test_threads_have_stacks_of_their_own(tmp_path: Path) -> None:
    found = read(
        tmp_path / "t.json",
        half("B", 1, "outer"),
        half("B", 2, "other thread", tid=2),
        half("B", 3, "inner", args={"flops": 8}),
        half("E", 4, args={"bytes": 16}),
        half("E", 7, "outer"),
        half("E", 9, tid=2),
    )
    assert slices(found) == [("outer", 0, 6000), ("other thread", 1000, 7000), ("inner", 2000, 1000)]
    inner = found.events.collect().row(2, named=True)
    assert (inner["kind"], inner["flops"], inner["bytes"]) == ("kernel", 8.0, 16.0)
    assert "unmatched" not in found.metadata


def test_asynchronous_slices_overlap_and_are_told_apart(tmp_path: Path) -> None:
    found = read(
        tmp_path / "t.json",
        half("b", 1, "read", cat="io", id="0x1"),
        half("b", 2, "read", cat="io", id=2),
        half("b", 3, "read", cat="io", id="0x1", scope="disk"),
        half("n", 4, "half", cat="io", id=2),
        half("e", 5, "read", cat="io", id="0x1", tid=9),
        half("e", 7, "read", cat="io", id=2),
        half("e", 9, "read", cat="io", id="0x1", scope="disk"),
    )
    assert slices(found) == [("read", 0, 4000), ("read", 1000, 5000), ("read", 2000, 6000), ("half", 3000, 0)]
    assert found.events.select("kind").collect()["kind"].to_list() == ["region"] * 3 + ["mark"]


@pytest.mark.parametrize(
    ("events", "reasons"),
    [
        ([half("E", 1, "a")], {"end without begin": 1}),
        ([half("B", 1, "a"), half("B", 2, "b"), half("E", 3, "a")], {"begin without end": 1}),
        ([half("B", 5, "a"), half("E", 3, "a")], {"end before begin": 1}),
        ([half("B", None, "a"), half("E", 3, "a")], {"without a time": 1, "end without begin": 1}),
        ([half("b", 1, "a", id=1), half("e", 2, "a", id=2)], {"end without begin": 1, "begin without end": 1}),
    ],
)  # fmt: skip
def test_events_of_no_pair_are_counted(tmp_path: Path, events: list[dict[str, Any]], reasons: dict[str, int]) -> None:
    assert read(tmp_path / "t.json", half("X", 0, "whole", dur=1), *events).metadata["unmatched"] == reasons


def test_pairs_are_found_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events.EventFile.__init__, "__defaults__", (256,))
    inner = [half(ph, 2 * at + (ph == "E"), f"{at}") for at in range(1, 101) for ph in "BE"]
    found = read(tmp_path / "t.json", half("B", 0, "all"), *inner, half("E", 500))
    assert slices(found) == [("all", 0, 500_000), *[(f"{at}", 2000 * at, 1000) for at in range(1, 101)]]
    assert "unmatched" not in found.metadata
