"""The CUDA driver on a real GPU: launches, graphs, updates, descriptors, and the faults that can be provoked."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera.errors import ArgumentError, MemoryLimitError, UnsupportedTargetError
from tessera.runtime.cuda import CudaDriver
from tessera.runtime.devices.device import LaunchOf, driver_of
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.measurement import Effort, SubprocessMeasurer
from tessera.tuning.measure.workload import Case, GpuLaunch, OperandSpec, SlotAddress, Workload, materialize
from tests.unit.runtime.cuda.offline_kernels import compile_source

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(scope="module")
def device() -> CudaDriver:
    found = driver_of("cuda:0")
    assert isinstance(found, CudaDriver)
    return found


def values_of(tensor: torch.Tensor) -> set[float]:
    return set(tensor.tolist())


def programs(elements: int) -> tuple[int, int, int]:
    return (-(-elements // 128), 1, 1)


@pytest.mark.parametrize("elements", [1, 127, 128, 1000, 1_000_003])
def test_a_kernel_computes_and_writes_nothing_else(device: CudaDriver, elements: int) -> None:
    loaded = device.load(compile_source("add_one", device.target))
    x = torch.arange(elements + 64, dtype=torch.float32, device="cuda")
    device.launch(loaded, programs(elements), (x.data_ptr(), elements), device.stream())
    expected = torch.arange(elements + 64, dtype=torch.float32)
    expected[:elements] += 1
    assert torch.equal(x.cpu(), expected)


def test_work_goes_to_the_stream_that_it_is_given(device: CudaDriver) -> None:
    loaded = device.load(compile_source("add_one", device.target))
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    stream = device.streams.create_stream()
    with torch.cuda.stream(stream):
        assert device.stream() == stream.cuda_stream
        for _ in range(100):
            device.launch(loaded, programs(1000), (x.data_ptr(), 1000), device.stream())
    device.synchronize(stream.cuda_stream)
    assert values_of(x) == {100}


def test_a_graph_of_a_thousand_kernels_runs_all_of_them_in_order(device: CudaDriver) -> None:
    loaded = device.load(compile_source("add_one", device.target))
    x = torch.zeros(1000, device="cuda")
    graph = device.record([LaunchOf(loaded, programs(1000), (x.data_ptr(), 1000))] * 1000)
    for _ in range(3):
        graph.launch(device.stream())
    assert values_of(x) == {3000}


def test_an_updated_graph_uses_new_addresses_extents_and_grids(device: CudaDriver) -> None:
    loaded = device.load(compile_source("add_one", device.target))
    x, y = torch.zeros(1000, device="cuda"), torch.zeros(5000, device="cuda")
    graph = device.record([LaunchOf(loaded, programs(1000), (x.data_ptr(), 1000))] * 3)
    graph.launch(device.stream())
    graph.update(1, programs(4999), (y.data_ptr(), 4999))
    graph.launch(device.stream())
    graph.update(2, (0, 1, 1), (x.data_ptr(), 0))
    graph.launch(device.stream())
    graph.update(2, programs(1000), (x.data_ptr(), 1000))
    graph.launch(device.stream())
    assert values_of(x) == {3 + 2 + 1 + 2}
    assert values_of(y[:4999]) == {3}
    assert y[4999].item() == 0
    with pytest.raises(ArgumentError):
        graph.update(0, programs(1), (x.data_ptr() + 4, 1))


@pytest.mark.parametrize("name", ["host_descriptor", "device_descriptor"])
def test_tiles_are_read_through_tensor_descriptors(device: CudaDriver, name: str) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no bulk tensor copies before compute capability 9.0")
    loaded = device.load(compile_source(name, device.target))
    a = torch.randn(100, 80, device="cuda").to(torch.bfloat16)
    out = torch.full((128, 80), float("nan"), dtype=torch.bfloat16, device="cuda")
    arguments: tuple[int, ...]
    if name == "host_descriptor":
        arguments = (a.data_ptr(), 100, 80, 80, 1, out.data_ptr(), 80)
    else:
        arguments = (a.data_ptr(), out.data_ptr(), 100, 80)
    device.launch(loaded, (2, 1, 1), arguments, device.stream())
    expected = torch.zeros(128, 64, dtype=torch.bfloat16)
    expected[:100] = a.cpu()[:, :64]
    assert torch.equal(out[:, :64].cpu(), expected)  # rows past the extent read zero


def test_events_measure_the_device(device: CudaDriver) -> None:
    loaded = device.load(compile_source("add_one", device.target))
    x = torch.zeros(1 << 24, device="cuda")
    launch = LaunchOf(loaded, programs(x.numel()), (x.data_ptr(), x.numel()))
    graph = device.record([launch] * 100)
    stream = device.stream()
    graph.launch(stream)
    device.fill_cache(stream)
    seconds = device.elapsed_s(lambda: graph.launch(stream), stream)
    assert seconds > 100 * 2 * x.nbytes / 50e12  # no memory moves 50 TB/s


def test_pinned_memory_is_told_from_pageable_and_copied(device: CudaDriver) -> None:
    pinned, pageable = torch.arange(1000).pin_memory(), torch.arange(1000)
    assert device.streams.is_pinned(pinned.data_ptr())
    assert not device.streams.is_pinned(pageable.data_ptr())
    target = torch.zeros(1000, dtype=torch.int64, device="cuda")
    assert not device.streams.is_pinned(target.data_ptr())
    device.streams.memcpy_async(target.data_ptr(), pinned.data_ptr(), pinned.nbytes, device.stream())
    assert torch.equal(target.cpu(), pinned)


def test_out_of_memory_names_requested_and_free_bytes_and_leaks_nothing(device: CudaDriver) -> None:
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryLimitError, match=r"1,125,899,906,842,624 bytes requested on cuda:0, [\d,]+ of its"):
        device.allocate(1 << 50)
    assert torch.cuda.memory_allocated() == before


def test_code_of_another_gpu_is_refused_by_us_and_by_cuda(device: CudaDriver) -> None:
    from tessera import target

    other = "sm80" if device.target.arch != "sm_80" else "sm90"
    kernel = compile_source("add_one", target.gpu(other))
    with pytest.raises(UnsupportedTargetError, match="another GPU"):
        device.load(kernel)
    with pytest.raises(UnsupportedTargetError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        device.load(replace(kernel, arch=device.target.arch))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def test_an_illegal_address_ends_its_process_only_and_says_so() -> None:
    program = [sys.executable, "-m", "tests.gpu.faulting"]
    done = subprocess.run(program, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("E_DEVICE_FAULT") == 2
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout
    assert "context is lost" in done.stdout
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_a_faulting_candidate_is_a_labelled_record(device: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    ones = OperandSpec((1000,), (1,), "fp32", "zero")
    check = check_output(0, FullReference(materialize(ones).tensor.double() + 1), "fp32")
    # The output is poisoned before the check, so a kernel that adds to it is wrong, and one that faults has crashed.
    work = Workload((ones,), (check,), device="cuda:0", time_limit_s=120.0)
    adds, faults = (compile_source(name, device.target).to_bytes() for name in ("add_one", "out_of_bounds"))
    cases = [
        Case(work, (GpuLaunch(adds, programs(1000), (SlotAddress(0), 1000)),)),
        Case(work, (GpuLaunch(faults, (1, 1, 1), (SlotAddress(0), 1 << 44)),)),
        Case(work, (GpuLaunch(adds, programs(1000), (SlotAddress(0), 1000)),)),
    ]
    measurer = SubprocessMeasurer()
    try:
        trials = measurer.measure(
            [(Schedule(number=number), case) for number, case in enumerate(cases)], Effort(2, 1e-3, 10.0, 1.0)
        )
    finally:
        measurer.close()
    assert [trial.outcome for trial in trials] == ["wrong", "crashed", "wrong"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in trials[1].detail
