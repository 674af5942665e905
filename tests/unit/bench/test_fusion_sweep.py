"""The sweep over drawn expressions: a seed names one, fusion changes no result, and what is wrong is not timed."""

from __future__ import annotations

import pytest
import torch

from bench.jobs.job import deviation
from bench.probes import fusion_sweep
from bench.probes.fusion_sweep import TOLERANCE, draw, fused, unfused

SMALL = 2000


@pytest.mark.parametrize("seed", range(16))
def test_fusion_changes_no_result_of_a_drawn_expression(seed: int) -> None:
    expression = draw(seed, most=SMALL)
    assert deviation(fused(expression), unfused(expression)) <= TOLERANCE, expression.title


def test_a_seed_names_an_expression() -> None:
    first, again, other = draw(7, most=SMALL), draw(7, most=SMALL), draw(8, most=SMALL)
    assert first.title == again.title != other.title
    assert torch.equal(fused(first), fused(again))


def test_what_is_wrong_is_told_and_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fusion_sweep, "draw", lambda seed, least: draw(seed, most=SMALL))
    monkeypatch.setattr(fusion_sweep, "unfused", lambda expression: fused(expression) + 1e6)
    fusion_sweep.main(["--cases", "1"])
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "0 expressions, geometric mean not measured, 0 below 0.95, 1 wrong" in out
