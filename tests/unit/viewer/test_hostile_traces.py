"""Traces with next to nothing in them, with values that are none, and of other machines: each question has an answer,
or an error that says why; none ends the server, and what is answered is JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tessera.profiling.export.formats import parquet
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer.app import Viewer
from tessera.viewer.pages import answers
from tessera.viewer.runs import runs_at
from tests.unit.viewer.asking import asked, viewer_of
from tests.unit.viewer.made import HOSTILE, whole_run

KERNEL: Final[dict[str, Any]] = {"kind": "kernel", "kernel_name": "k", "start_ns": 5, "dur_ns": 7, "rank": 0}
ELSEWHERE: Final = {"target": {"kind": "cpu", "arch": "vax", "name": "VAX 11/780", "cores": 1}}
WORK: Final = {"flops": 1e9, "bytes": 1e6, "dtype": "fp32", "workers": 1, "operator": "matmul"}
TRACES: Final[dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]] = {
    "nothing": ([], {}),
    "one kernel of which nothing else is known": ([{"kind": "kernel", "start_ns": 5, "dur_ns": 7}], {}),
    "one kernel of another machine": ([{**KERNEL, **WORK}], ELSEWHERE),
    "one of each kind, without a duration": (
        [
            {"kind": kind, "kernel_name": kind, "start_ns": place}
            for place, kind in enumerate(("kernel", "memcpy", "collective", "operator", "region", "mark", "counter"))
        ],
        {},
    ),
    "durations below zero, and no numbers": (
        [
            {**KERNEL, **WORK, "dur_ns": -3, "flops": float("nan")},
            {**KERNEL, **WORK, "flops": float("inf"), "power_w": float("nan")},
            {"kind": "sample", "kernel_name": "power_w", "start_ns": 9, "value": float("inf")},
        ],
        {},
    ),
    "names": ([{**KERNEL, **WORK, "operator": name, "kernel_name": name, "region": name} for name in HOSTILE], {}),
    "instants far apart": ([{**KERNEL, "start_ns": -(1 << 62)}, {**KERNEL, "start_ns": 1 << 62}], {}),
    "metadata that leads nowhere": ([KERNEL], {"ceilings": {"x": 1}, "plans": {"x": 1}, "target": {"memory": 3}}),
}
QUESTIONS: Final = (*answers.ANSWERS, "programs", "columns", "kernel", "event")


def made(events: list[dict[str, Any]], metadata: dict[str, Any]) -> Trace:
    """A trace of these events."""
    names = list(dict.fromkeys(name for event in events for name in event))
    table = frame({name: [event.get(name) for event in events] for name in names})
    return Trace(table.sort("start_ns").lazy(), metadata, {})


def strictly(text: bytes) -> Any:
    """JSON as browsers take it, which know no NaN."""

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refused)


@pytest.mark.parametrize("name", TRACES)
def test_each_question_has_an_answer_or_a_reason(name: str) -> None:
    viewer = viewer_of(made(*TRACES[name]), whole_run())
    for question in QUESTIONS:
        status, headers, body = asked(viewer, f"/api/{question}?run=0&row=0&by=kernel")
        assert status in (200, 400, 404, 422), (question, body)
        if headers["Content-Type"].startswith("application/json"):
            told = strictly(body)
            assert status == 200 or told["error"]["message"], question


@pytest.mark.parametrize("name", TRACES)
def test_a_run_is_compared_with_such_a_one(name: str) -> None:
    viewer = viewer_of(whole_run(), made(*TRACES[name]))
    for first, second in ((0, 1), (1, 0)):
        status, _, body = asked(viewer, f"/api/compare?a={first}&b={second}")
        told = strictly(body)
        assert status in (200, 400, 422), body
        if status == 200:
            assert any("device" in each for each in told["differences"]), name


@pytest.mark.parametrize(
    "metadata", [{"target": "?"}, {"ceilings": [1]}, {"ranks": {"0": 1}}, {"launched": "many"}, {"totals": {"a": 1}}]
)
def test_a_file_that_tells_something_else_of_itself_is_damaged(tmp_path: Path, metadata: dict[str, Any]) -> None:
    parquet.write(made([KERNEL], metadata), tmp_path / "a.parquet")
    status, _, body = asked(Viewer(lambda: runs_at(tmp_path)), "/api/overview?run=0")
    assert (status, "damaged" in strictly(body)["error"]["message"]) == (422, True), body
