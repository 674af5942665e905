"""The bench of launches: every way and length is called, and the goal is judged; times themselves are not looked at."""

from __future__ import annotations

import pytest

from bench.gpu import launch
from bench.gpu.launch import GOAL_US, LENGTHS, UNCHANGED, Row
from tessera.backend.contract import GpuParameter
from tests.unit.runtime.cuda.fake import FakeCuda, driver, kernel


def test_every_way_is_measured_at_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LENGTHS", (1, 3))
    fake = FakeCuda((8, 8, 8))
    device = driver(fake)
    loaded = device.load(kernel(GpuParameter("x", "*fp32", 0)))
    rows = list(launch.lines(device, loaded, [(16,), (32,)]))
    assert [(row.way, row.kernels) for row in rows] == [
        (way, count) for count in (1, 3) for way in ("one by one", UNCHANGED, "update of all addresses")
    ]
    calls = launch.REPEATS + 1
    assert len(fake.launched) == calls * (1 + 3)
    assert fake.names().count("cuGraphLaunch") == 2 * calls
    assert fake.names().count("cuGraphExecKernelNodeSetParams_v2") == calls * (1 + 3)
    assert fake.names().count("cuStreamSynchronize") == 6 * calls


@pytest.mark.parametrize(("median", "verdict"), [(GOAL_US, "10.0 us: met"), (GOAL_US + 1, "11.0 us: NOT met")])
def test_the_goal_is_judged_by_the_slowest_length(median: float, verdict: str) -> None:
    rows = [Row(UNCHANGED, LENGTHS[0], 1.0, 1.0), Row(UNCHANGED, LENGTHS[-1], median, 1.0), Row("other", 1, 99.0, 99.0)]
    assert verdict in launch.markdown(rows, "heading")
    assert "not measured" in launch.markdown(rows[2:], "heading")


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert launch.main([]) == 1
    assert "torch sees no CUDA device" in capsys.readouterr().err
