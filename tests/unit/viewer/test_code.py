"""The code of kernels: made again from their plans by another process, under the schedules that ran."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tessera import graph, op, profile
from tessera.compiler.explain.code import answer
from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.trace.table import Trace
from tessera.viewer import one_file
from tessera.viewer.pages import code
from tessera.viewer.runs import run_of
from tests.unit.viewer.asking import answered, viewer_of
from tests.unit.viewer.made import whole_run


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """A product and a softmax, each of them a kernel."""
    x, w = torch.randn(48, 64), torch.randn(64, 80)

    def step() -> None:
        op.softmax(op.matmul(x, w)).eval()

    with profile.session() as session:
        graph.profile(step, warmup=0)
        step()
    return session.trace()


def test_kernels_are_listed_with_the_schedules_that_ran(recorded: Trace) -> None:
    told = answered(viewer_of(recorded), "/api/programs?run=0")
    assert sorted(row["kernel"] for row in told["programs"]) == ["matmul", "softmax"]
    assert all(row["known"] and row["calls"] == 2 and "tile=" in row["schedule"] for row in told["programs"])


def test_tiles_that_were_timed_within_the_session_are_told(recorded: Trace) -> None:
    told = answered(viewer_of(recorded), "/api/programs?run=0")["programs"]
    timed = {row["kernel"]: row["tiles"] for row in told}
    assert timed["softmax"]["tiles"] == 48
    for row in recorded.metadata["tiles"]:
        shown = timed[row["operator"]]
        assert all(shown[name] == row[name] for name in ("latency_us", "slowest_us", "occupancy_pct"))
        assert 0 < shown["fastest_us"] <= shown["latency_us"] <= shown["slowest_us"]
    damaged = Trace(recorded.events, {**recorded.metadata, "tiles": [{"operator": "softmax"}]}, recorded.capability)
    with pytest.raises(ProfileError, match="tiles"):
        code.programs(run_of(damaged, "run"), {})


def test_code_is_that_of_the_schedule_that_ran(recorded: Trace) -> None:
    for row in code.programs(run_of(recorded, "run"), {})["programs"]:
        plan = recorded.metadata["plans"][str(row["plan"])]
        question = {"expression": plan, "step": row["step"], "label": row["label"], "schedule": row["schedule"]}
        told = answer(json.loads(json.dumps(question)))
        assert "tessera.tile.kernel" in told["texts"]["Tile IR"]
        assert "define" in told["texts"]["Target source"]
        assert ".size" in told["texts"]["Assembly"]
        assert told["estimate"]["us"] > 0
        narrower = row["schedule"].replace("unroll=4", "unroll=2").replace("keep=1024", "keep=0")
        if narrower != row["schedule"]:
            assert answer({**question, "schedule": narrower})["texts"]["Assembly"] != told["texts"]["Assembly"]


def test_a_plan_of_another_version_is_refused(recorded: Trace) -> None:
    row = code.programs(run_of(recorded, "run"), {})["programs"][0]
    question = {"expression": recorded.metadata["plans"][str(row["plan"])], "step": 9, "label": "x", "schedule": ""}
    assert "other steps" in answer(question)["reason"]
    assert "expression" in answer({**question, "expression": "no expression"})["reason"]


def test_a_process_of_its_own_makes_the_code_and_answers_are_kept(recorded: Trace) -> None:
    run = run_of(recorded, "run")
    told = code.code(run, {"program": "0"})
    assert "Tile IR" in told.get("texts", ()), told
    assert code.code(run, {"program": "0"}) is told
    with pytest.raises(ArgumentError):
        code.code(run, {"program": "7"})


def test_a_kernel_of_somebody_else_has_none() -> None:
    told = code.code(run_of(whole_run(), "run"), {"program": "0"})
    assert "none of Tessera's plans" in told["reason"]


def test_a_compiler_that_ends_is_said(recorded: Trace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\necho out of memory >&2\nexit 1\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert "out of memory" in code.code(run_of(recorded, "run"), {"program": "0"})["reason"]


def test_a_report_holds_code_where_it_is_asked_for(recorded: Trace) -> None:
    run = run_of(recorded, "run")
    assert "tessera.tile.kernel" not in one_file.text([run])
    assert "tessera.tile.kernel" in one_file.text([run], with_code=True)
