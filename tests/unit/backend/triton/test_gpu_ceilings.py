"""A GPU's measured ceilings: what is measured, that they are kept, and that they replace published figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tessera import settings, target
from tessera.backend.triton import ceilings
from tessera.backend.triton.ceilings import DeviceProbe, TorchBench, measure, probes
from tessera.errors import UnsupportedTargetError
from tessera.scheduling.model.gpu_constants import KNOWN
from tessera.scheduling.model.gpu_machine import gpu_machine
from tessera.target import stored_ceilings as on_disk
from tessera.target.stored_ceilings import driver_version, stored_ceilings, with_stored

H200 = target.gpu("H200")


class FakeBench:
    """Does 500 TFLOP/s and moves 4 TB/s, but has no 8-bit floats."""

    def __init__(self) -> None:
        self.launches: dict[DeviceProbe, list[int]] = {}

    def prepare(self, probe: DeviceProbe) -> Callable[[int], float] | None:
        """What pretends to run a probe."""
        if probe.what == "fp8_e4m3":
            return None
        rate = 4e12 if probe.access else 500e12
        counts = self.launches.setdefault(probe, [])

        def run(count: int) -> float:
            counts.append(count)
            return probe.amount * count / rate

        return run


def test_products_and_memory_are_measured_and_what_is_lacking_left_out() -> None:
    found = measure(H200, FakeBench())
    assert {row.dtype for row in found.compute} == {"fp64", "fp32", "tf32", "bf16", "fp16", "int8"}
    assert found.flop_per_s("bf16", H200.cores) == pytest.approx(500e12)
    for level, access in (("HBM", "copy"), ("HBM", "read"), ("HBM", "write"), ("L2", "read")):
        assert found.byte_per_s(level, H200.cores, access) == pytest.approx(4e12)
    assert found.source.startswith(f"measured with torch {torch.__version__}, driver")
    assert found.date


def test_a_sample_lasts_long_enough_for_the_clock_to_settle() -> None:
    bench = FakeBench()
    measure(H200, bench)
    for probe, counts in bench.launches.items():
        rate = 4e12 if probe.access else 500e12
        seconds = probe.amount * counts[-1] / rate
        assert seconds > 0.6 * ceilings.SAMPLE_S, probe
        assert len(counts) == 2 + ceilings.ROUNDS


@pytest.mark.parametrize("name", target.GPUS)
def test_arrays_leave_l2_or_stay_in_it(name: str) -> None:
    gpu = target.gpu(name)
    level, memory = gpu.level("L2"), gpu.level("HBM")
    assert level is not None
    assert memory is not None
    l2 = level.size_bytes * gpu.cores // level.shared_by
    for probe in probes(gpu):
        if probe.what == "HBM":
            assert 4 * l2 <= probe.nbytes <= memory.size_bytes // 8
            assert probe.amount == probe.nbytes * (2 if probe.access == "copy" else 1)
        elif probe.what == "L2":
            assert 4 * probe.nbytes <= l2


def test_kept_ceilings_replace_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "detect_gpu", lambda index: H200)
    monkeypatch.setattr(ceilings, "TorchBench", lambda index: FakeBench())
    with settings.override(cache_dir=tmp_path):
        assert stored_ceilings(H200) is None
        assert with_stored(H200) is H200
        made = ceilings.measured()
        assert stored_ceilings(H200) == made
        monkeypatch.setattr(ceilings, "TorchBench", None)
        assert ceilings.measured() == made  # not measured again
        machine = gpu_machine(with_stored(H200))
        # Another driver is another measurement.
        monkeypatch.setattr(on_disk, "driver_version", lambda: "999.1")
        assert stored_ceilings(H200) is None
    assert machine.flop_per_s["bf16"] == pytest.approx(500e12)
    assert machine.hbm_byte_per_s == pytest.approx(4e12)
    assert machine.flop_per_s["fp8_e4m3"] == pytest.approx(
        KNOWN.sustained * 1978.9e12
    )  # published, as none were measured
    assert machine.sources["HBM"].startswith("measured")


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path):
        on_disk._path(H200).parent.mkdir(parents=True)
        on_disk._path(H200).write_text("{")
        assert stored_ceilings(H200) is None


def test_a_folder_that_cannot_be_written_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "detect_gpu", lambda index: H200)
    monkeypatch.setattr(ceilings, "TorchBench", lambda index: FakeBench())
    (tmp_path / "file").write_text("in the way")
    with settings.override(cache_dir=tmp_path / "file"), pytest.warns(UserWarning, match="E_CACHE_IO"):
        assert ceilings.measured().compute


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UnsupportedTargetError, match="no GPU number 0"):
        ceilings.measured()


def test_the_driver_says_its_version(tmp_path: Path) -> None:
    assert driver_version(tmp_path) == ""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Tue Jul  8 18:16:47 UTC 2025\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert driver_version(tmp_path) == "570.172.08"


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> TorchBench:
    """The torch operations of the probes, small and on the CPU, where nothing is timed."""
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "int8")
    monkeypatch.setattr(ceilings, "EXTENT", dict.fromkeys(dtypes, 32))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    bench = TorchBench(0)
    bench.device = torch.device("cpu")
    return bench


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "bf16", "fp16", "int8"])
def test_the_probes_are_products_that_torch_has(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    launch = on_the_cpu(monkeypatch)._product(dtype)
    made = launch()
    assert isinstance(made, torch.Tensor)
    assert made.shape == (32, 32)
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("probe", [DeviceProbe("HBM", access, 4096.0, 4096) for access in ("copy", "read", "write")])
def test_the_probes_touch_every_byte(probe: DeviceProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    made = on_the_cpu(monkeypatch)._memory(probe)()
    assert isinstance(made, torch.Tensor)
    assert float(made.sum()) == {"copy": 1024.0, "read": 1024.0, "write": 2048.0}[probe.access]


def test_a_read_of_l2_goes_over_its_array_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = on_the_cpu(monkeypatch)._memory(DeviceProbe("L2", "read", 0.0, 4096))()
    assert isinstance(made, torch.Tensor)
    assert float(made) == 64 * 1024


def test_a_product_that_torch_refuses_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = on_the_cpu(monkeypatch)

    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(torch, "_int_mm", refuse)
    assert bench.prepare(DeviceProbe("int8", "", 1.0)) is None
    assert bench.prepare(DeviceProbe("bf16", "", 1.0)) is not None
