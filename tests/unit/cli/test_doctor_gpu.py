"""`tessera doctor` on GPUs: device, driver, facts and ceilings, or why there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tessera import settings, target
from tessera.backend.cuda_tile.compilation import assembler
from tessera.backend.triton import ceilings
from tessera.cli import doctor_gpu
from tessera.cli.commands.doctor import doctor
from tessera.errors import TesseraError
from tessera.scheduling.model.gpu_constants import known
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling
from tessera.target.stored_ceilings import store_ceilings
from tests.unit.target.test_gpus import H200, Properties


def pretend(monkeypatch: pytest.MonkeyPatch, *devices: Properties) -> None:
    """Has torch see these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(devices))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: devices[index])
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(doctor_gpu, "driver_version", lambda: "570.172.08")


def test_a_device_its_facts_and_where_its_ceilings_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, H200)
    with settings.override(cache_dir=tmp_path):
        software, _, device, peaks = doctor_gpu.gpus()
    assert software.found.startswith("driver 570.172.08, torch with CUDA 12.8")
    assert (device.subject, device.state) == ("cuda:0", "ok")
    assert "NVIDIA H200, sm_90, 139.8 GiB, 132 multiprocessors; known as H200-SXM5-141GB" in device.found
    assert peaks.state == "absent"
    assert "not measured; instead: NVIDIA H100" in peaks.found
    assert "tessera doctor --measure" in peaks.remedy


def test_measured_ceilings_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, H200)
    gpu = target.gpu("H200")
    found = Ceilings(
        gpu.arch,
        gpu.name,
        "measured with torch",
        (ComputeCeiling("bf16", 132, 780e12),),
        (MemoryCeiling("HBM", 132, 4.3e12, "copy"),),
        "2026-01-01T00:00:00+00:00",
    )
    with settings.override(cache_dir=tmp_path):
        store_ceilings(gpu, found)
        _, _, _, peaks = doctor_gpu.gpus()
    assert peaks.state == "ok"
    assert peaks.found == "measured 2026-01-01T00:00:00+00:00, 780 TFLOP/s in bf16, copies 4.3 TB/s"


def test_a_device_too_old_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Properties(name="Tesla T4", major=7, minor=5))
    _, _, device = doctor_gpu.gpus()
    assert device.state == "absent"
    assert "compute capability 7.5" in device.found


def test_no_device_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    (found,) = doctor_gpu.gpus()
    assert found.state == "absent"
    assert found.remedy


def test_measuring_asks_every_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(ceilings, "measured", asked.append)
    monkeypatch.setattr("tessera.cli.examination.examine", lambda environment: [])
    doctor(measure=True)
    assert asked == [0, 1]


@pytest.mark.parametrize(
    ("driver", "state", "said"),
    [
        ("570.172.08", "absent", "driver 570.172.08 launches none"),
        ("580.65.06", "ok", "tileiras 13.4"),
        ("", "ok", "13.4"),
    ],
)
def test_kernels_of_cuda_tile_need_a_new_driver(
    driver: str, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembler, "version", lambda: "tileiras 13.4")
    found = doctor_gpu.cuda_tile(driver)
    assert (found.subject, found.state) == ("CUDA Tile", state)
    assert said in found.found
    assert ("r580" in found.remedy) is (state == "absent")


def test_without_its_compiler_cuda_tile_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "PACKAGE", "no-such-package")
    found = doctor_gpu.cuda_tile("580.65.06")
    assert found.state == "absent"
    assert "[cuda-tile]" in found.remedy


def test_the_constants_of_a_gpus_model_are_shown_with_the_choices_that_hang_on_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor(gpu_model="h100")
    printed = capsys.readouterr().out
    assert "predicted, no GPU was asked" in printed
    for constant in known():
        assert constant.name in printed
    counted = re.search(rf"(\d+) of {len(known())} constants change a choice", printed)
    assert counted is not None
    # Of each that changes one, the schedules are shown under the value that changes it.
    shown = set(re.findall(r"^(\w+)=[\d.e-]+: ", printed, re.MULTILINE))
    assert len(shown) == int(counted[1]) > 0
    assert printed.count("  better ") >= len(shown)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_the_model_of_this_machines_gpu_needs_one() -> None:
    with pytest.raises(TesseraError, match="there is no GPU number 0"):
        doctor(gpu_model="here")


def test_a_gpu_that_nobody_knows_has_no_model() -> None:
    with pytest.raises(TesseraError, match="no-such-gpu"):
        doctor(gpu_model="no-such-gpu")
