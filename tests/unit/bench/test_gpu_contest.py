"""The contest of tuners on GPUs, held on the CPU: tuners that tune nothing, and a clock that counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.gpu import contest
from bench.gpu.contest import HELION, OURS, TRITON, Found, NotHereError, Operands, hold, main, markdown, rows
from bench.gpu.timing import Cache, Call, Sample
from tests import forked

SIZE = (33, 17, 65)
ROOT = Path(__file__).parent.parent.parent.parent
INTERPRETED = """
import torch
from bench.gpu import triton_peer as peer
a, b, out = torch.randn(70, 40), torch.randn(40, 50), torch.full((70, 50), float("nan"))
steps = a.stride(0), b.stride(0), out.stride(0)
peer._product[(6,)](a, b, out, 70, 50, 40, *steps, BM=32, BN=32, BK=16, GROUP_M=2)
print(float((out - a.double() @ b.double()).abs().max()))
"""
"""Tiles that overhang on all sides, by Triton's interpreter."""


class Counting:
    """A timer whose seconds are how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def prepared(self, call: Call, cache: Cache) -> Sample:
        """Samples are the number of questions so far."""

        def sample() -> float:
            call()
            self.asked += 1
            return float(self.asked)

        return sample


def _right(operands: Operands) -> Callable[[], torch.Tensor]:
    return lambda: operands[0] @ operands[1]


def _wrong(operands: Operands) -> Callable[[], torch.Tensor]:
    return lambda: 2 * (operands[0] @ operands[1])


def _absent(operands: Operands) -> Callable[[], torch.Tensor]:
    raise NotHereError("helion is not installed")


def _broken(operands: Operands) -> Callable[[], torch.Tensor]:
    raise RuntimeError("out of resources")


def test_a_tuner_that_fails_does_not_end_the_contest() -> None:
    found = hold(SIZE, {TRITON: _broken, OURS: _right}, Counting(), "cpu", lambda: None)
    assert found.missing == {TRITON: "out of resources"}
    assert found.call_s.keys() == {OURS}


def test_winners_are_checked_and_timed_and_the_others_have_a_reason() -> None:
    found = hold(SIZE, {OURS: _right, TRITON: _wrong, HELION: _absent}, Counting(), "cpu", lambda: None)
    assert found.tuning_s.keys() == {OURS, TRITON}
    assert found.call_s.keys() == {OURS}
    assert found.call_s[OURS].keys() == {"cold", "warm"}
    assert "wrong result" in found.missing[TRITON]
    assert found.missing[HELION] == "helion is not installed"
    assert found.ratio(TRITON, "warm") is None
    assert any("not measured: helion is not installed" in cells for cells in rows(found))


def test_goals_are_held_against_both_wall_clock_and_result() -> None:
    found = Found(
        SIZE,
        {OURS: 3.0, TRITON: 30.0, HELION: 15.0},
        {OURS: {"cold": 1.0, "warm": 1.0}, TRITON: {"cold": 0.98, "warm": 1.2}, HELION: {"cold": 1.0, "warm": 0.9}},
    )
    assert found.share(TRITON) == pytest.approx(0.1)
    text = markdown([found], "device")
    assert "| 10.0 % (met: 15 %) |" in text
    assert "| 1.200, 0.980 (met: 0.97) |" in text
    assert "| 20.0 % (NOT met: 15 %) |" in text
    assert "| 0.900, 1.000 (NOT met: 0.97) |" in text


def test_helion_that_is_not_installed_is_said_to_be_so() -> None:
    operands = torch.randn(2, 2), torch.randn(2, 2)
    with pytest.raises(NotHereError, match="helion is not installed"):
        contest.TUNERS[HELION](operands)


def test_the_hand_written_product_is_right() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = forked.run(INTERPRETED, environment=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-5


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main([]) == 1
    assert "not measured" in capsys.readouterr().err
