"""`tests/gpu` and the bench of GPUs without one, over a driver that counts calls and fails chosen ones."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import cast

import pytest
import torch

from bench.gpu import launch
from tessera import target
from tessera.errors import DeviceError, DeviceFaultError, MemoryLimitError, TesseraError
from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.devices.device import driver_of
from tests.gpu import test_driver as on_gpus
from tests.unit.runtime.cuda.fake import FakeCuda
from tests.unit.runtime.cuda.offline_kernels import compile_source
from tests.unit.runtime.cuda.pretended import pretended

OUT_OF_MEMORY, UNAVAILABLE, ILLEGAL_ADDRESS = 2, 46, 700


def add_one(grid: tuple[int, int, int], parameters: list[bytes]) -> None:
    """What the kernel of this name does."""
    (address,), (elements,) = struct.unpack("<Q", parameters[0]), struct.unpack("<i", parameters[1])
    count = min(elements, 128 * grid[0])
    torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32).add_(1)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    with pretended() as found:
        found.bodies["add_one"] = add_one
        yield found


@pytest.fixture
def device(fake: FakeCuda) -> CudaDriver:
    return cast(CudaDriver, driver_of("cuda:0"))


def test_the_tests_of_the_driver_pass_where_kernels_do_what_they_should(device: CudaDriver, fake: FakeCuda) -> None:
    for elements in (1, 127, 1000):
        on_gpus.test_a_kernel_computes_and_writes_nothing_else(device, elements)
    on_gpus.test_a_graph_of_a_thousand_kernels_runs_all_of_them_in_order(device)
    on_gpus.test_an_updated_graph_uses_new_addresses_extents_and_grids(device)
    on_gpus.test_events_measure_the_device(device)
    on_gpus.test_out_of_memory_names_requested_and_free_bytes_and_leaks_nothing(device)
    counts = fake.counts()
    assert (counts["cuModuleLoadData"], counts["cuLaunchKernelEx"]) == (1, 3)
    assert (counts["cuGraphAddKernelNode_v2"], counts["cuGraphLaunch"]) == (1000 + 3 + 100, 3 + 4 + 2)
    assert fake.problems == []


def test_the_tests_of_the_driver_fail_where_kernels_do_nothing(device: CudaDriver, fake: FakeCuda) -> None:
    fake.bodies.clear()
    with pytest.raises(AssertionError):
        on_gpus.test_a_kernel_computes_and_writes_nothing_else(device, 127)


@pytest.mark.parametrize(
    ("code", "kind", "is_lost"),
    [
        (OUT_OF_MEMORY, MemoryLimitError, False),
        (UNAVAILABLE, DeviceError, False),
        (ILLEGAL_ADDRESS, DeviceFaultError, True),
    ],
)
def test_the_chosen_call_fails_and_a_fault_fails_all_later_ones(
    device: CudaDriver, fake: FakeCuda, code: int, kind: type[TesseraError], is_lost: bool
) -> None:
    loaded, x = device.load(compile_source("add_one", target.gpu("h200"))), torch.zeros(8)
    fake.fail("cuLaunchKernelEx", code, call=2)
    device.launch(loaded, (1, 1, 1), (x.data_ptr(), 8), 0)
    with pytest.raises(kind):
        device.launch(loaded, (1, 1, 1), (x.data_ptr(), 8), 0)
    assert x.tolist() == [1] * 8
    if is_lost:
        with pytest.raises(DeviceFaultError):
            device.synchronize(0)
    else:
        device.synchronize(0)
        device.launch(loaded, (1, 1, 1), (x.data_ptr(), 8), 0)
        assert x.tolist() == [2] * 8


def test_launches_are_benched_as_often_as_they_say(
    device: CudaDriver, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LENGTHS", (2,))
    loaded = device.load(compile_source("add_one", target.gpu("h200")))
    x = torch.zeros(8)
    rows = list(launch.lines(device, loaded, [(x.data_ptr(), 8), (x.data_ptr(), 4)]))
    assert len(rows) == 3
    assert x[7] == 2 * 2 * (launch.REPEATS + 1)  # one by one and as a graph; updates launch nothing
    fake.fail("cuGraphLaunch", ILLEGAL_ADDRESS, call=5)
    with pytest.raises(DeviceFaultError):
        list(launch.lines(device, loaded, [(x.data_ptr(), 8), (x.data_ptr(), 4)]))
