"""The queue of a CUDA stream, by a fake that records what it is asked: what waits for what, and when memory is kept."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tessera import event, memcpy, op, stream
from tessera.errors import DeviceError, StreamError, StreamRaceError
from tessera.lazy.leaves.sources import from_torch
from tessera.runtime.streams.cuda_queue import CudaOperation, CudaQueue
from tessera.runtime.streams.stream import tracker
from tessera.stream import Stream
from tests.unit.runtime.streams.support import held


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        self.passed = False

    def record(self, on: FakeStream) -> None:
        self.log.append(f"{on.name} records {self.name}")

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.log.append(f"program waits for {self.name}")
        self.passed = True


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_event(self, waited: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {waited.name}")

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """`torch.cuda`, as far as a queue uses it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entered: list[FakeStream] = [FakeStream(self.log, "default")]
        self.made = 0
        self.events: list[FakeEvent] = []

    def Stream(self, device: Any) -> FakeStream:  # noqa: N802 - torch's name
        self.made += 1
        return FakeStream(self.log, f"s{self.made}")

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        self.made += 1
        self.events.append(FakeEvent(self.log, f"e{self.made}"))
        return self.events[-1]

    def current_stream(self, device: Any) -> FakeStream:
        return self.entered[-1]

    @contextmanager
    def stream(self, entered: FakeStream) -> Iterator[None]:
        self.entered.append(entered)
        try:
            yield
        finally:
            self.entered.pop()


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    """A device that has done everything once the test is over."""
    made = FakeCuda()
    yield made
    for each in made.events:
        each.passed = True
    for operation in list(tracker.unfinished):
        operation.poll()


def on_device(cuda: FakeCuda, name: str, sync: stream.Sync = "auto") -> Stream:
    """A stream as on a device that is not there."""
    made = stream.create(name, sync=sync)
    made.core.device, made.core.queue = "cuda:0", CudaQueue("cuda:0", cuda)
    return made


def work(s: Stream, cuda: FakeCuda, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> CudaOperation:
    done = s.core.enqueue(
        name,
        lambda: cuda.log.append(f"{cuda.entered[-1].name} runs {name}"),
        reads=[from_torch(each) for each in reads],
        writes=[from_torch(each) for each in writes],
    )
    assert isinstance(done, CudaOperation)
    return done


def test_work_runs_at_the_call_under_its_stream_behind_the_programs_own(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")
    work(s, cuda, "a", [torch.zeros(2)], [])
    assert cuda.log == ["s1 waits for default", "s1 runs a", "s1 records e2"]


def test_a_manual_stream_does_not_wait_for_the_programs_own(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute", "manual")
    work(s, cuda, "a", [torch.zeros(2)], [])
    assert cuda.log == ["s1 runs a", "s1 records e2"]


def test_a_conflict_becomes_a_wait_of_the_device(cuda: FakeCuda) -> None:
    copying, computing = on_device(cuda, "copying"), on_device(cuda, "computing")
    x = torch.zeros(4)
    copy = work(copying, cuda, "copy", [], [x])
    cuda.log.clear()
    work(computing, cuda, "read", [x], [])
    assert cuda.log == ["s2 waits for default", f"s2 waits for {copy.event.name}", "s2 runs read", "s2 records e4"]
    assert not copying.query()
    copying.synchronize()
    assert cuda.log[-1] == "program waits for e3"
    assert copy.done


def test_no_wait_for_what_is_done(cuda: FakeCuda) -> None:
    copying, computing = on_device(cuda, "copying"), on_device(cuda, "computing")
    x = torch.zeros(4)
    copy = work(copying, cuda, "copy", [], [x])
    copy.event.passed = True
    assert copying.query()
    cuda.log.clear()
    work(computing, cuda, "read", [x], [])
    assert cuda.log == ["s2 waits for default", "s2 runs read", "s2 records e4"]


def test_events_are_the_devices(cuda: FakeCuda) -> None:
    first, second = on_device(cuda, "first", "manual"), on_device(cuda, "second", "manual")
    x, point = torch.zeros(4), event.create()
    work(first, cuda, "write", [], [x])
    with pytest.raises(StreamRaceError):
        work(second, cuda, "read", [x], [])
    point.record(first)
    point.wait(second)
    cuda.log.clear()
    work(second, cuda, "read", [x], [])
    assert cuda.log == ["s2 runs read", "s2 records e6"]


def test_a_value_is_read_behind_its_work_without_holding_the_program_up(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")
    done = work(s, cuda, "a", [], [])
    cuda.log.clear()
    done.result()
    assert cuda.log == [f"default waits for {done.event.name}"]
    done.event.passed = True
    done.result()
    assert len(cuda.log) == 1


def test_the_program_waits_before_it_reads_memory_of_the_cpu(cuda: FakeCuda) -> None:
    s = on_device(cuda, "d2h")
    x = torch.ones(4)
    work(s, cuda, "copy back", [], [x])
    assert (op.tensor(x) + 1).tolist() == [2] * 4
    assert cuda.log[-1].startswith("program waits for")


def test_work_of_the_cpu_is_waited_for_before_a_launch(cuda: FakeCuda) -> None:
    device, host = on_device(cuda, "device"), stream.create("host")
    x = torch.zeros(4)
    gate = threading.Event()
    host.core.enqueue("hold", lambda: _wait(gate))
    memcpy.async_(dst=x, src=torch.ones(4), stream=host)
    threading.Timer(0.02, gate.set).start()
    work(device, cuda, "read", [x], [])
    assert x.all()


def test_work_of_the_cpu_waits_for_the_device(cuda: FakeCuda) -> None:
    device, host = on_device(cuda, "device"), stream.create("host")
    x, y = torch.ones(4), torch.zeros(4)
    work(device, cuda, "fill", [], [x])
    memcpy.async_(dst=y, src=x, stream=host).wait()
    assert y.all()
    assert cuda.log[-1].startswith("program waits for")


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def test_a_launch_that_fails_is_told_where_it_is_read(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")

    def fail() -> None:
        raise OSError("an illegal address")

    failed = s.core.enqueue("launch", fail)
    with pytest.raises(StreamError, match="illegal address"):
        failed.result()
    with pytest.raises(StreamError, match="illegal address"):
        s.synchronize()


def test_an_interrupt_is_the_programs_and_leaves_nobody_waiting(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.core.enqueue("launch", interrupted)
    with pytest.raises(StreamError, match="KeyboardInterrupt"):
        s.synchronize()
    s.core.enqueue("launch", lambda: None).result()


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_memory_of_the_cpu_is_kept_until_the_work_is_done_and_a_devices_until_the_launch(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    recorded: list[object] = []
    if where == "device":  # such tensors there are none here
        monkeypatch.setattr("tessera.runtime.streams.cuda_queue._on_device", lambda owner: owner)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, on: recorded.append(on.name))
    s = on_device(cuda, "copying")
    x = torch.zeros(8)
    is_alive = weakref.ref(x)
    copy = work(s, cuda, "copy", [x], [])
    assert copy.run is None
    assert recorded == (["s1", "default"] if where == "device" else [])
    del x
    assert (is_alive() is not None) == (where == "cpu")
    copy.event.passed = True
    assert s.query()
    assert is_alive() is None


def test_done_work_of_a_device_is_forgotten(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")
    x = torch.zeros(4)
    for _ in range(1200):
        work(s, cuda, "write", [], [x]).event.passed = True
    assert len(tracker.unfinished) < 700
    s.synchronize()


def test_operands_elsewhere_are_refused(cuda: FakeCuda) -> None:
    s = on_device(cuda, "compute")
    with pytest.raises(DeviceError, match="stream 'compute' is on cuda:0, and the operands are on cpu"):
        op.exp(torch.zeros(2), stream=s)
    assert cuda.log == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_stream_of_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceError, match="cuda:0"):
        stream.create(device="cuda:0")
    with pytest.raises(DeviceError):
        stream.create(device="tpu")


def test_a_cpu_stream_has_no_stream_of_torch() -> None:
    s = stream.create()
    with held(s):
        assert s.torch is None
