"""Tuning on a real GPU: what is measured there is remembered, is right, and is what plans then use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera import autotune, op
from tessera.compiler import pipeline
from tessera.tuning.measure.trial import Trial
from tests.docs.snippets import SPEC, run_all, snippets

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

SIZE = (1024, 768, 512)


def test_a_product_is_tuned_and_plans_use_the_winner(cache_dir: Path) -> None:
    config = autotune(op.matmul, SIZE, "bf16", "on_device", max_trials=6, budget_s=600, device="cuda:0")
    assert config.source == "measured"
    assert str(config.identity.arch).startswith("sm_")
    right = [trial for trial in config.trials if trial.outcome == "ok"]
    assert right
    assert {trial.outcome for trial in config.trials} <= {"ok", "compile_error"}, _failed(config.trials)
    # Below the time that the multiplications alone would take at 5 PFLOP/s something was not run.
    assert min(trial.seconds for trial in right) > 2 * SIZE[0] * SIZE[1] * SIZE[2] / 5e15
    a = torch.randn(SIZE[0], SIZE[2], device="cuda").bfloat16()
    b = torch.randn(SIZE[2], SIZE[1], device="cuda").bfloat16()
    product = op.matmul(a, b)
    structure = product.structure
    error = (product.torch().double() - a.double() @ b.double()).abs().max().item()
    assert error < 0.02 * SIZE[2] ** 0.5 * 4
    assert config.schedule in [choice.schedule for choice in pipeline.launched(structure)]
    assert list(cache_dir.rglob("*.json"))


def test_spec_5_6_as_it_is_written(cache_dir: Path) -> None:
    snippet = snippets(SPEC / "000_profiling_and_autotuning.md")[3]
    with torch.device("cuda:0"):
        config = run_all([snippet], {"autotune": autotune, "op": op})["cfg"]
    assert config.identity.shape == (8192, 8192, 8192)
    assert config.identity.arch.startswith("sm_")
    assert config.source == "measured"
    assert config.measured_s == min(trial.seconds for trial in config.trials if trial.schedule == config.schedule)


def _failed(trials: tuple[Trial, ...]) -> list[str]:
    return [f"{trial.outcome}: {trial.detail}" for trial in trials if trial.outcome not in ("ok", "compile_error")]
