"""What a run used, as tuning problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import autotune, numerics, op, profile
from tessera.compiler.explain.inspection import choices_of
from tessera.compiler.tune.usage import Timed, require, usage, usage_of_session, usage_of_trace
from tessera.errors import ProfileError
from tessera.tuning.options import options
from tessera.tuning.uses import Usage

A, B = torch.randn(96, 64), torch.randn(64, 80)


@pytest.fixture
def trace(tmp_path: Path, cache_dir: Path) -> Path:
    """A trace of ten products with a gelu, three softmaxes and a call of a library."""
    path = tmp_path / "trace.json"
    with profile.session(exporters=[profile.chrome(path)]):
        for _ in range(10):
            op.gelu(op.matmul(A, B)).eval()
        for _ in range(3):
            op.softmax(A, axis=-1).eval()
        op.rfft(A).eval()
    return path


def test_kernels_of_a_trace_are_the_problems_of_their_operators(trace: Path) -> None:
    found = usage_of_trace(trace)
    by_label = {use.label: use for use in found.uses}
    assert set(by_label) == {"matmul+gelu", "softmax"}
    product, softmax = by_label["matmul+gelu"], by_label["softmax"]
    assert (product.calls, softmax.calls) == (10, 3)
    assert product.problem.identity.shape == (96, 80, 64)
    assert softmax.problem.identity == autotune(op.softmax, (96, 64)).identity
    assert list(found.untuned) == ["calls of libraries"]
    assert [use.seconds for use in found.uses] == sorted((use.seconds for use in found.uses), reverse=True)
    events = json.loads(trace.read_text())["traceEvents"]
    lasted = sum(event["dur"] for event in events if event.get("cat") == "kernel")
    assert found.seconds == pytest.approx(lasted / 1e6)


def test_a_use_is_tuned_and_found_by_the_next_call(trace: Path) -> None:
    product = next(use for use in usage_of_trace(trace).uses if use.label == "matmul+gelu")
    config = autotune.solve(product.problem, options("model"))
    (choice,) = choices_of(op.gelu(op.matmul(A, B)).structure)
    assert choice.schedule == config.schedule


def test_a_session_says_what_its_trace_does(cache_dir: Path) -> None:
    with profile.session() as session:
        op.matmul(A, B).eval()
        op.matmul(torch.randn(96, 64), torch.randn(64, 80)).eval()
    (use,) = usage_of_session(session).uses
    assert (use.label, use.calls, use.problem.identity.shape) == ("matmul", 2, (96, 80, 64))


def test_a_plan_is_posed_under_the_policy_that_it_ran_under(cache_dir: Path) -> None:
    with profile.session() as session, numerics.policy("deterministic"):
        op.matmul(A, B).eval()
    (use,) = usage_of_session(session).uses
    assert use.problem.identity.determinism == "deterministic"
    assert use.problem.build(use.problem.space.default).launches


def test_forgotten_plans_are_counted() -> None:
    found = usage([Timed(7, 0, "matmul", 2.0), Timed(8, 0, "exp", 1.0)], {8: {"unavailable": "odd attribute"}})
    assert found == Usage((), {"their plans were forgotten before the profile ended": 2.0, "odd attribute": 1.0})
    with pytest.raises(ProfileError, match=r"nothing that ran in x\.json can be tuned") as error:
        require(found, Path("x.json"))
    assert "odd attribute" in str(error.value)


def change(trace: Path, **fields: Any) -> Path:
    content = json.loads(trace.read_text()) | fields
    trace.write_text(json.dumps(content))
    return trace


def test_what_is_no_trace_is_refused(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there is no"):
        usage_of_trace(tmp_path / "missing.json")
    text = tmp_path / "text.json"
    text.write_text("{")
    with pytest.raises(ProfileError, match="in no format that is known"):
        usage_of_trace(text)
    text.write_text('{"traceEvents": []}')
    with pytest.raises(ProfileError, match="does not say what its kernels compute"):
        usage_of_trace(text)
    with pytest.raises(ProfileError, match="no kernel that ran"):
        usage_of_trace(change(trace, traceEvents=json.loads(trace.read_text())["traceEvents"][:1]))
    with pytest.raises(ProfileError, match="damaged"):
        usage_of_trace(change(trace, tesseraKernels=3))


def test_steps_that_do_not_fit_their_plan_are_counted(trace: Path) -> None:
    kernels = json.loads(trace.read_text())["tesseraKernels"]
    kernels["step_id"] = [
        9 if name == "softmax" else step for name, step in zip(kernels["operator"], kernels["step_id"], strict=True)
    ]
    found = usage_of_trace(change(trace, tesseraKernels=kernels))
    assert {use.label for use in found.uses} == {"matmul+gelu"}
    assert "other schedules are chosen here than when this ran" in found.untuned
