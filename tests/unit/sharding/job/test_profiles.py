"""Collectives of real ranks in profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.sharding.job.nursery import Nursery
from tests.unit.sharding.job.profiled import LATE_S

BYTES = 512 * 128 * 4


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_records_say_what_went_where_and_who_was_late(forks: Nursery, transport: str, tmp_path: Path) -> None:
    outcome = forks.run(2, "mesh_profile", folder=str(tmp_path), transport=transport)
    assert outcome.code == 0, outcome.err
    for rank in range(2):
        (told,) = outcome.said(rank)
        reduced, gathered = told["records"]
        for record, name, algorithm in ((reduced, "all_reduce", "two-phase"), (gathered, "all_gather", "direct")):
            assert (record["type"], record["axis"], record["size"]) == (name, "tp", 2)
            assert (record["bytes"], record["transport"]) == (BYTES / 2, transport)
            assert record["algorithm"] == f"{transport}, {algorithm}"
            assert record["stream"] == "axis tp"
            if transport == "gloo":  # half the operand and half the result; or all of the operand
                assert record["wire"] == BYTES / 2
                assert record["wait_us"] is None
            else:
                assert record["wire"] == 0
                assert record["wait_us"] + record["transfer_us"] == pytest.approx(record["duration_us"], abs=1)
        if transport == "shared":  # rank 1 comes after rank 0 by so much at least
            assert gathered["wait_us"] >= LATE_S * 0.9e6 if rank == 0 else gathered["wait_us"] == 0
    rows = {row[0]: row for row in outcome.said(0)[0]["rows"]}
    assert rows["all_gather"][1:4] == ["tp", 2, 1]
    assert rows["all_gather"][4] >= LATE_S * 0.9e6
    assert rows["all_reduce"][1:3] == ["tp", 2]
    assert "clocks of the ranks agree within 0.0 us" in outcome.said(0)[0]["text"]
    events = json.loads((tmp_path / "rank0.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "axis tp" in tracks.values()


def test_a_profile_of_a_graph_names_the_axis(forks: Nursery) -> None:
    outcome = forks.run(2, "mesh_graph_profile")
    assert outcome.code == 0, outcome.err
    (told,) = outcome.said(1)[-1:]
    assert "AllReduce[dp]" in told["labels"]
    assert re.search(r"AllReduce\[dp\] +latency=[\d.]+µs +bandwidth=[\d.e-]+GB/s", told["text"])


def test_section_11_of_the_profiling_guide_runs_on_ranks(forks: Nursery, tmp_path: Path) -> None:
    outcome = forks.run(2, "spec_11", folder=str(tmp_path))
    assert outcome.code == 0, outcome.err
    for rank in range(2):
        told = outcome.said(rank)[-1]
        assert told == {
            "same": True,
            "stream": "communicate",
            "transport": "shared",
            "size": 2,
            "row": ["all_reduce", 120.0],
            "exported": ["runs", "step.csv", "step.json"],
            "products": True,
        }
