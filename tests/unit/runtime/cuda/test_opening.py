"""Why there is no driver: the reason and the remedy, for each of the ways in which a machine has none."""

from __future__ import annotations

from importlib import metadata

import pytest
import torch

from tessera.errors import DeviceError, UnsupportedTargetError
from tessera.runtime.cuda import libcuda, open_device
from tessera.runtime.cuda.memory import DeviceBytes, TorchAllocator
from tessera.system.distribution import installing
from tests.unit.runtime.cuda.fake import FakeCuda


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch with CUDA that sees two devices, and Triton."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(metadata, "version", lambda name: "3.6.0")


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(UnsupportedTargetError, match="built without CUDA") as caught:
        open_device(0)
    assert "pytorch.org" in caught.value.hints[0]


def test_torch_for_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UnsupportedTargetError, match="not launched on them yet") as caught:
        open_device(0)
    assert "gfx942" in caught.value.hints[0]


@pytest.mark.usefixtures("cuda_torch")
def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UnsupportedTargetError, match="Triton is not installed") as caught:
        open_device(0)
    assert installing("triton") in caught.value.hints[0]


@pytest.mark.usefixtures("cuda_torch")
def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcuda, "LIBRARY", "libcuda-of-no-machine.so.1")
    with pytest.raises(UnsupportedTargetError, match="no NVIDIA driver: libcuda-of-no-machine"):
        open_device(0)


@pytest.mark.usefixtures("cuda_torch")
@pytest.mark.parametrize("number", [2, -1])
def test_no_such_device(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    library = libcuda.Libcuda(FakeCuda().resolve)
    monkeypatch.setattr(libcuda.Libcuda, "open", lambda: library)
    with pytest.raises(DeviceError, match=f"no device cuda:{number}: torch sees only cuda:0 to cuda:1"):
        open_device(number)


def test_stream_0_is_torchs_default_stream_and_not_one_of_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: f"{stream} of {device}")
    recorded: list[str] = []

    class Owner:
        record_stream = recorded.append

    allocator = TorchAllocator(1)
    for stream in (0, 42):
        allocator.keep_for(DeviceBytes(0, 8, Owner), stream)
    assert recorded == ["default of cuda:1", "42 of cuda:1"]
