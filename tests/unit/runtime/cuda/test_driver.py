"""The CUDA driver over a fake library: loading, launching, and what becomes of every failure."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace

import pytest

from tessera import target
from tessera.backend.contract import GpuParameter, LaunchFacts, TensorMapFacts
from tessera.errors import (
    ArgumentError,
    DeviceError,
    DeviceFaultError,
    DriverError,
    MemoryLimitError,
    TesseraError,
    UnsupportedTargetError,
)
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.driver import runs_on
from tessera.runtime.cuda.libcuda import Libcuda
from tessera.runtime.cuda.results import FAULTS
from tessera.runtime.devices.device import Driver, LaunchOf
from tests.unit.runtime.cuda.fake import CONTEXT, FakeCuda, HostAllocator, driver, kernel

POINTER = GpuParameter("x", "*fp32", 0, divisor=16)
SIZE = GpuParameter("n", "i32", 0, "size")
SIZES = (8, 4, 8, 8)
"""Of the parameters of `kernel(POINTER, SIZE)`, and of the two that Triton appends."""


def test_a_launch_passes_grid_block_shared_memory_stream_and_parameters() -> None:
    fake = FakeCuda(SIZES)
    device: Driver = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE, threads=256, shared=2048))
    device.launch(loaded, (5, 6, 7), (0x1000, 33), stream=9)
    (launched,) = fake.launched
    assert (launched.grid, launched.block, launched.shared, launched.stream) == ((5, 6, 7), (256, 1, 1), 2048, 9)
    assert launched.parameters == [struct.pack("<Q", 0x1000), struct.pack("<i", 33), bytes(8), bytes(8)]
    assert launched.attributes == {}


def test_launches_reuse_their_site_and_see_new_values() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE))
    for n in (1, 2):
        device.launch(loaded, (n, 1, 1), (0x1000 * n, n), stream=n)
    assert [(each.grid[0], each.stream, each.parameters[1]) for each in fake.launched] == [
        (n, n, struct.pack("<i", n)) for n in (1, 2)
    ]
    assert len(loaded.sites) == 1
    assert fake.names()[-4:] == ["cuCtxGetCurrent", "cuLaunchKernelEx"] * 2


def test_threads_do_not_share_a_site() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE))

    def work(number: int) -> None:
        for count in range(50):
            device.launch(loaded, (number, 1, 1), (0x1000 * number, 100 * number + count), stream=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [
        (each.stream, each.grid[0], *struct.unpack("<Q", each.parameters[0]), *struct.unpack("<i", each.parameters[1]))
        for each in fake.launched
    ]
    assert sorted(seen) == [(n, n, 0x1000 * n, 100 * n + count) for n in range(1, 5) for count in range(50)]


def test_a_grid_without_programs_launches_nothing() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    device.launch(device.load(kernel(POINTER, SIZE)), (3, 0, 1), (0, 0), stream=0)
    assert fake.launched == []


@pytest.mark.parametrize("grid", [(2**31, 1, 1), (1, 65_536, 1), (1, 1, 65_536), (-1, 1, 1)])
def test_a_grid_past_what_cuda_launches_is_refused(grid: tuple[int, int, int]) -> None:
    device = driver(FakeCuda(SIZES))
    with pytest.raises(ArgumentError, match="cannot be launched"):
        device.launch(device.load(kernel(POINTER, SIZE)), grid, (0, 0), stream=0)


def test_clusters_cooperation_and_dependent_launches_are_attributes() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    facts = LaunchFacts(clusters=2, cooperative=True, dependent=True)
    device.launch(device.load(kernel(POINTER, SIZE, launch=facts)), (3, 1, 1), (0, 0), stream=0)
    (launched,) = fake.launched
    assert launched.grid == (6, 1, 1)
    values = {name: struct.unpack_from("<III", value) for name, value in launched.attributes.items()}
    assert values == {
        cuda.ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: (1, 0, 0),
        cuda.ATTRIBUTE_COOPERATIVE: (1, 0, 0),
        cuda.ATTRIBUTE_CLUSTER_DIMENSION: (2, 1, 1),
        cuda.ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: (cuda.CLUSTER_SCHEDULING_POLICY_SPREAD, 0, 0),
    }


def test_scratch_memory_is_taken_for_each_launch_on_its_stream() -> None:
    fake, allocator = FakeCuda(SIZES), HostAllocator()
    device = driver(fake, allocator)
    facts = LaunchFacts(scratch_bytes=384, scratch_alignment=128, clusters=2)
    device.launch(device.load(kernel(POINTER, SIZE, launch=facts)), (5, 2, 1), (0, 0), stream=11)
    assert allocator.given == [(5 * 2 * 2 * 384 + 128, 11)]
    (address,) = struct.unpack("<Q", fake.launched[0].parameters[2])
    assert address
    assert address % 128 == 0


DESCRIPTOR = GpuParameter("a", "tensordesc<bf16[128, 64]>", 0)
MAPS = LaunchFacts(tensor_maps=(TensorMapFacts(3, 2, 9, (128, 64)),))


def test_a_tensor_map_is_encoded_innermost_dimension_first_and_only_when_it_changes() -> None:
    fake = FakeCuda((128, 4, 4, 8, 8, 8, 8))
    device = driver(fake)
    loaded = device.load(kernel(DESCRIPTOR, launch=MAPS))
    for address in (0x1000, 0x1000, 0x2000):
        device.launch(loaded, (1, 1, 1), (address, 300, 72, 80, 1), stream=0)
    first, second = fake.maps
    assert first == {
        "type": 9,
        "address": 0x1000,
        "extents": [72, 300],
        "strides": [160],
        "box": [64, 128],
        "steps": [1, 1],
        "modes": (0, 3, 2, 0),
    }
    assert second == {**first, "address": 0x2000}
    assert [each.parameters[0] for each in fake.launched] == [b"\1" * 128, b"\1" * 128, b"\2" * 128]
    assert fake.launched[0].parameters[1:5] == [struct.pack("<i", 300), struct.pack("<i", 72), *_longs(80, 1)]
    assert not fake.problems


def test_a_thread_without_a_context_encodes_tensor_maps_in_the_devices() -> None:
    fake = FakeCuda((128, 4, 4, 8, 8, 8, 8))
    device = driver(fake)
    loaded = device.load(kernel(DESCRIPTOR, launch=MAPS))
    fake.current = 0
    fake.calls.clear()
    device.launch(loaded, (1, 1, 1), (0x1000, 300, 72, 80, 1), stream=0)
    names = [name for name in fake.names() if name != "cuCtxGetCurrent"]
    entered = ("cuCtxPushCurrent_v2", "{}", "cuCtxPopCurrent_v2")
    assert names == [name.format(call) for call in ("cuTensorMapEncodeTiled", "cuLaunchKernelEx") for name in entered]


def _longs(*values: int) -> list[bytes]:
    return [struct.pack("<q", value) for value in values]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((0x1000, 300, 72, 80, 2), "innermost dimension has to be contiguous"),
        ((0x1008, 300, 72, 80, 1), "address is no multiple of 16"),
        ((0x1000, 300, 72, 81, 1), "multiples of 16 bytes"),
        ((0x1000, 300, 72, -80, 1), "positive multiples"),
        ((0x1000, 0, 72, 80, 1), "between 1 and"),
    ],
)
def test_a_tensor_that_no_map_describes_is_refused(arguments: tuple[int, ...], why: str) -> None:
    fake = FakeCuda((128, 4, 4, 8, 8, 8, 8))
    device = driver(fake)
    with pytest.raises(ArgumentError, match=why):
        device.launch(device.load(kernel(DESCRIPTOR, launch=MAPS)), (1, 1, 1), arguments, stream=0)
    assert fake.launched == []


def test_a_kernel_of_tiles_takes_its_own_parameters_alone_and_is_launched_with_one_thread() -> None:
    fake = FakeCuda(SIZES[:2], version=13_000)
    device = driver(fake)
    tiles = kernel(POINTER, SIZE, threads=384, shared=200_000, launch=LaunchFacts(is_tile=True))
    loaded = device.load(tiles)
    assert "cuFuncSetAttribute" not in fake.names()
    device.launch(loaded, (3, 1, 1), (0x1000, 33), stream=0)
    (launched,) = fake.launched
    assert (launched.block, launched.shared) == ((1, 1, 1), 0)
    assert launched.parameters == [struct.pack("<Q", 0x1000), struct.pack("<i", 33)]

    device.record([LaunchOf(loaded, (3, 1, 1), (0x1000, 33))])
    (node,) = fake.nodes.values()
    assert (node.block, node.shared, node.parameters) == ((1, 1, 1), 0, launched.parameters)

    with pytest.raises(UnsupportedTargetError, match="cuda:0 cannot launch"):
        driver(FakeCuda(version=12_090)).load(tiles)


def test_kernels_are_loaded_once() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    first = device.load(kernel(POINTER, SIZE))
    assert device.load(kernel(POINTER, SIZE)) is first
    assert device.load(kernel(POINTER, SIZE, entry="other")) is not first
    assert fake.names().count("cuModuleLoadData") == 2


@pytest.mark.parametrize(("shared", "asked"), [(48 * 1024, None), (48 * 1024 + 1, 49_153), (232_448, 232_448)])
def test_shared_memory_past_48_kib_is_asked_for(shared: int, asked: int | None) -> None:
    fake = FakeCuda(SIZES)
    driver(fake).load(kernel(POINTER, SIZE, shared=shared))
    wanted = [given[1:] for name, given in fake.calls if name == "cuFuncSetAttribute"]
    assert wanted == ([] if asked is None else [(cuda.FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, asked)])


def test_large_shared_memory_comes_before_l1() -> None:
    fake = FakeCuda(SIZES)
    driver(fake).load(kernel(POINTER, SIZE, shared=100_000))
    assert [given[1] for name, given in fake.calls if name == "cuFuncSetCacheConfig"] == [cuda.FUNC_CACHE_PREFER_SHARED]


def test_instrumented_kernels_are_refused() -> None:
    instrumented = kernel(POINTER, SIZE, launch=LaunchFacts(profile_scratch_bytes=64))
    with pytest.raises(UnsupportedTargetError, match="instrumentation"):
        driver(FakeCuda(SIZES)).load(instrumented)


def test_more_shared_memory_than_there_is_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="232,449 bytes of shared memory"):
        driver(FakeCuda(SIZES)).load(kernel(POINTER, SIZE, shared=232_449))


def test_clusters_that_are_not_portable_are_allowed_first() -> None:
    fake = FakeCuda(SIZES)
    driver(fake).load(kernel(POINTER, SIZE, launch=LaunchFacts(clusters=16)))
    wanted = [given[1:] for name, given in fake.calls if name == "cuFuncSetAttribute"]
    assert wanted == [(cuda.FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)]


def test_a_kernel_for_another_gpu_is_refused_before_cuda_sees_it() -> None:
    fake = FakeCuda(SIZES)
    with pytest.raises(UnsupportedTargetError, match=r"compiled for sm_80, and cuda:0 is another GPU: H200.*sm_90"):
        driver(fake).load(kernel(POINTER, SIZE, arch="sm_80"))
    assert "cuModuleLoadData" not in fake.names()


@pytest.mark.parametrize(
    ("compiled", "device", "fits"),
    [
        ("sm_90", "sm_90", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90", "sm_100", False),
        ("sm_100", "sm_103", False),
        ("gfx942", "sm_90", False),
        ("gfx942", "gfx942", True),
    ],
)
def test_machine_code_runs_where_cuda_says(compiled: str, device: str, fits: bool) -> None:
    assert runs_on(compiled, device) == fits


def test_a_kernel_of_another_driver_is_refused() -> None:
    ours, theirs = driver(FakeCuda(SIZES)), driver(FakeCuda(SIZES))
    with pytest.raises(DeviceError, match="not loaded on cuda:0"):
        ours.launch(theirs.load(kernel(POINTER, SIZE)), (1, 1, 1), (0, 0), stream=0)


@pytest.mark.parametrize(("current", "pushes"), [(CONTEXT, 0), (0, 1), (0xBAD, 1)])
def test_calls_run_in_the_devices_context_and_leave_the_threads_own(current: int, pushes: int) -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE))
    fake.current = current
    fake.calls.clear()
    device.launch(loaded, (1, 1, 1), (0, 0), stream=0)
    device.synchronize(4)
    assert fake.names().count("cuCtxPushCurrent_v2") == fake.names().count("cuCtxPopCurrent_v2") == 2 * pushes
    assert ("cuStreamSynchronize", (4,)) in fake.calls


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (2, MemoryLimitError, r"CUDA_ERROR_OUT_OF_MEMORY \(as the driver words it\)"),
        (1, DriverError, "CUDA_ERROR_INVALID_VALUE"),
        (34, UnsupportedTargetError, "CUDA_ERROR_STUB_LIBRARY"),
        (100, DeviceError, "CUDA_ERROR_NO_DEVICE"),
        (209, UnsupportedTargetError, "CUDA_ERROR_NO_BINARY_FOR_GPU.*made for another GPU"),
        (222, UnsupportedTargetError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        (803, UnsupportedTargetError, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (5555, DriverError, r"CUDA_ERROR_OF_TOMORROW \(as the driver words it\)"),
    ],
)
def test_a_result_becomes_the_error_that_fits(code: int, kind: type[TesseraError], text: str) -> None:
    fake = FakeCuda(SIZES)
    fake.results["cuModuleLoadData"] = code
    with pytest.raises(kind, match=f"cuModuleLoadData: {text}"):
        driver(fake).load(kernel(POINTER, SIZE))


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_a_fault_says_that_the_context_is_lost(code: int) -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE, entry="culprit"))
    fake.results |= {"cuLaunchKernelEx": code, "cuStreamSynchronize": code}
    with pytest.raises(DeviceFaultError, match=r"launching kernel culprit: CUDA_ERROR_.*context is lost") as caught:
        device.launch(loaded, (1, 1, 1), (0, 0), stream=0)
    assert "restart the process" in caught.value.hints
    with pytest.raises(DeviceFaultError):
        device.synchronize(0)


def test_memory_that_is_not_there_is_an_error_with_requested_and_free_bytes() -> None:
    device = driver(FakeCuda(), HostAllocator(capacity=1000))
    with pytest.raises(MemoryLimitError, match=r"1,001 bytes requested on cuda:0, 1,000 of its 1,000 bytes are free"):
        device.allocate(1001)
    assert device.allocate(0).nbytes == 0
    assert device.allocate(1000).nbytes == 1000


def test_the_stream_is_torchs_current_one() -> None:
    allocator = HostAllocator()
    device = driver(FakeCuda(), allocator)
    allocator.current_stream = 42
    assert device.stream() == 42


def test_a_driver_too_old_is_refused_with_both_versions() -> None:
    with pytest.raises(UnsupportedTargetError, match=r"offers CUDA 11\.8, and 12\.0 is needed"):
        Libcuda(FakeCuda(version=11_080).resolve).initialize()


def test_a_function_that_the_driver_lacks_is_named() -> None:
    fake = FakeCuda((128, 4, 4, 8, 8, 8, 8))
    fake.missing.add("cuTensorMapEncodeTiled")
    device = driver(fake)
    with pytest.raises(UnsupportedTargetError, match="too old: it has no cuTensorMapEncodeTiled"):
        device.launch(device.load(kernel(DESCRIPTOR, launch=MAPS)), (1, 1, 1), (0x1000, 300, 72, 80, 1), stream=0)


def test_events_order_streams_and_measure_time() -> None:
    fake = FakeCuda()
    streams = driver(fake).streams
    start, end = streams.create_event(timing=True), streams.create_event()
    streams.record_event(start, 5)
    streams.wait_event(start, 6)
    assert streams.elapsed_s(start, end) == pytest.approx(1.5e-3)
    assert ("cuEventRecord", (start.handle, 5)) in fake.calls
    assert ("cuStreamWaitEvent", (6, start.handle, 0)) in fake.calls
    flags = [given[1] for name, given in fake.calls if name == "cuEventCreate"]
    assert flags == [cuda.EVENT_DEFAULT, cuda.EVENT_DISABLE_TIMING]
    fake.results["cuEventQuery"] = 600
    assert not streams.has_passed(start)
    fake.results["cuEventQuery"] = 700
    with pytest.raises(DeviceFaultError):
        streams.has_passed(start)
    handle = start.handle
    del start
    assert fake.calls[-1] == ("cuEventDestroy_v2", (handle,))


def test_pageable_memory_is_told_from_pinned() -> None:
    fake = FakeCuda()
    streams = driver(fake).streams
    fake.memory_types[0x1000] = cuda.MEMORY_HOST
    assert streams.is_pinned(0x1000)
    fake.memory_types[0x2000] = 2
    assert not streams.is_pinned(0x2000)
    fake.results["cuPointerGetAttribute"] = 1  # what CUDA says of memory that it does not know
    assert not streams.is_pinned(0x3000)
    fake.results["cuPointerGetAttribute"] = 719
    with pytest.raises(DeviceFaultError):
        streams.is_pinned(0x3000)


def test_copies_are_enqueued_and_empty_ones_are_not() -> None:
    fake = FakeCuda()
    streams = driver(fake).streams
    streams.memcpy_async(0x2000, 0x1000, 64, 3)
    streams.memset_async(0x2000, 255, 64, 3)
    streams.memcpy_async(0x2000, 0x1000, 0, 3)
    assert [call for call in fake.calls if call[0].startswith("cuMem")] == [
        ("cuMemcpyAsync", (0x2000, 0x1000, 64, 3)),
        ("cuMemsetD8Async", (0x2000, 255, 64, 3)),
    ]


def test_objects_of_one_kernel_for_two_gpus_are_two() -> None:
    one = kernel(POINTER, SIZE)
    device = driver(FakeCuda(SIZES), gpu="a100")
    with pytest.raises(UnsupportedTargetError):
        device.load(one)
    assert device.load(replace(one, arch="sm_80")).kernel.arch == target.gpu("a100").arch
