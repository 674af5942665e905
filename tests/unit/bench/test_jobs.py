"""Jobs: modules as users write them, checked before they are timed; goals, groups, memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bench import __main__ as command
from bench import jobs as themes
from bench.environments import NotMeasuredError
from bench.jobs import contenders, memory
from bench.jobs.job import PEERS, Call, Group, Inputs, Job, Peer, deviation, in_float64
from bench.jobs.posing import PosedJob, pose
from bench.pool import Pool, prepare_job
from bench.results import CaseResult, Measurement
from bench.suites import jobs as suite
from bench.suites.jobs import group_figures
from bench.timing import Budget
from tessera import op


def _linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(24, 8).eval().requires_grad_(False)


def _ours(module: nn.Module, inputs: Inputs) -> Call:
    weights = dict(module.named_parameters())
    return lambda: op.add(op.matmul(inputs[0], weights["weight"].t()), weights["bias"]).eval()


def _without_bias(module: nn.Module, inputs: Inputs) -> Call:
    weights = dict(module.named_parameters())
    return lambda: op.matmul(inputs[0], weights["weight"].t()).eval()


JOB = Job(
    name="linear",
    goal=1.5,
    inputs=lambda: (torch.randn(5, 24, generator=torch.Generator().manual_seed(2)),),
    module=_linear,
    ours=_ours,
    tolerance=1e-5,
)


def _posed(job: Job) -> PosedJob:
    return PosedJob(("test", job.name, True), job, job.module(), job.inputs())


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = str(tmp_path / "reference.pt")
    _posed(JOB).write_reference(path)
    return path


@pytest.mark.parametrize("contender", ["tessera", "torch"])
def test_contenders_are_checked_against_float64(contender: str, reference: str) -> None:
    call, error = _posed(JOB).prepare(contender, reference)
    assert 0.0 < error < 1e-6
    assert deviation(contenders.as_torch(call()), in_float64(JOB, _linear(), JOB.inputs())) == pytest.approx(error)


def test_a_wrong_result_is_not_measured(reference: str) -> None:
    wrong = replace(JOB, ours=_without_bias)
    with pytest.raises(NotMeasuredError, match="wrong result"):
        _posed(wrong).prepare("tessera", reference)


def test_a_result_that_is_not_written_again_is_found_out(reference: str) -> None:
    def stale(module: nn.Module, inputs: Inputs) -> Call:
        once = module(*inputs)
        return lambda: once

    with pytest.raises(NotMeasuredError, match="off by inf"):
        _posed(replace(JOB, peers={"stale": Peer(stale)})).prepare("stale", reference)


def test_poison_spares_a_result_that_lies_in_the_inputs() -> None:
    x = torch.ones(3)
    contenders.poison(x[1:], (x,))
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_everyone_takes_part() -> None:
    variant = replace(JOB, variants={"other way": JOB.ours}, peers={"packed": Peer(JOB.ours, "torch")})
    names = [one.name for one in contenders.contenders(variant)]
    assert names == [
        "tessera",
        "other way",
        "torch",
        "torch, unlocked",
        "torch.compile",
        "torch.compile, unlocked",
        "packed",
    ]
    assert "torch.compile" not in [one.name for one in contenders.contenders(replace(JOB, compiles=False))]
    assert [goal.ratio for goal in variant.goals] == [1.5]
    assert set(variant.goals[0].roles) == set(PEERS)


def test_a_deviation_of_another_shape_or_of_nan_is_infinite() -> None:
    reference = torch.ones(4, dtype=torch.float64)
    assert deviation(torch.ones(2, 2), reference) == float("inf")
    assert deviation(torch.tensor([1.0, 1.0, 1.0, float("nan")]), reference) == float("inf")
    assert deviation(torch.tensor([1.0, 1.0, 1.0, 1.5]), reference) == 0.5


def _case(ratio: float | None) -> CaseResult:
    ours = Measurement("tessera", "ours", "fresh", 1.0)
    peer = Measurement("torch", "eager", "fresh", ratio)
    return CaseResult("linear", 1, 0, 0, None, None, (ours, peer))


def test_a_group_is_the_geometric_mean_of_its_jobs() -> None:
    job = replace(JOB, goal=None, group=Group("layers", 1.1))
    (found,) = group_figures([job, job, JOB], [_case(2.0), _case(0.5), _case(9.0)], 1)
    assert found.value == pytest.approx(1.0)
    assert (found.least, found.met) == (1.1, False)
    (missing,) = group_figures([job, job], [_case(2.0), _case(None)], 1)
    assert (missing.value, missing.reason, missing.met) == (None, "1 of 2 jobs have no ratio", None)


def test_two_jobs_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.jobs.blocks.jobs", lambda quick: [JOB, JOB])
    with pytest.raises(ValueError, match="more than one job called linear"):
        themes.load("blocks", True)


@pytest.mark.parametrize("suite", themes.THEMES)
def test_every_theme_has_jobs_that_can_be_judged(suite: str) -> None:
    for theme in themes.THEMES[suite]:
        full, quick = themes.load(theme, False), themes.load(theme, True)
        assert 0 < len(quick) <= len(full)
        assert any(job.goals or job.group for job in full), theme  # others are there to be looked at
        for job in (*full, *quick):
            assert 0 < job.tolerance < 1, job.name


def test_a_worker_prepares_a_job_by_its_name(tmp_path: Path) -> None:
    name = themes.load("blocks", True)[0].name
    problem = {"theme": "blocks", "name": name, "quick": True, "path": str(tmp_path / "reference.pt")}
    with Pool(1) as pool:
        pool.process("torch").ask(do="reference", **problem)
        call = prepare_job(pool, "torch", "torch", problem)
        assert call.error is not None
        assert call.error < 1e-6
        assert call.batch().seconds > 0.0


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="Linux's figure")
def test_the_memory_of_a_call_is_what_comes_and_goes() -> None:
    name = themes.load("blocks", True)[0].name
    found = memory.measure("blocks", name, "torch", "torch", True, 1)
    assert 0 <= found["call"] < found["serving"]


def test_blocks_of_the_bench_are_right_in_every_variant(tmp_path: Path) -> None:
    for job in themes.load("blocks", True):
        posed = pose("blocks", job.name, True)
        path = str(tmp_path / "reference.pt")
        posed.write_reference(path)
        for contender in ("tessera", *job.variants):
            assert posed.prepare(contender, path)[1] <= job.tolerance


def test_ctrl_c_keeps_the_jobs_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(pool: Pool, theme: str, job: Job, quick: bool, budget: Budget) -> CaseResult:
        if job.name == "second":
            raise KeyboardInterrupt
        return CaseResult(job.name, 1, 0, 0, None, None, (Measurement("tessera", "ours", "fresh", seconds=1.0),))

    monkeypatch.setattr(suite, "load", lambda theme, quick: [replace(JOB, name=name) for name in ("first", "second")])
    monkeypatch.setattr(suite, "run_job", measured)
    path = tmp_path / "found.json"
    assert command.main(["skinny", "--threads", "1", "--untuned", "--json", str(path)]) == command.INTERRUPTED
    found = json.loads(path.read_text())
    assert not found["tuned"]
    assert found["suites"][0]["interrupted"]
    assert [case["label"] for case in found["suites"][0]["cases"]] == ["first"]
