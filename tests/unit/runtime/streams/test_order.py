"""What runs when: order within a stream, between streams by events, and by the memory that work touches."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy
import pytest
import torch

from tessera import Tensor, event, memcpy, op, stream
from tessera.errors import InputMutatedError, StreamError
from tests.unit.runtime.streams.support import held


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


def test_a_call_returns_before_its_work_is_done() -> None:
    s = stream.create(name="slow")
    a, b = torch.randn(7, 5), torch.randn(5, 3)
    with held(s):
        y = op.matmul(a, b, stream=s)
        assert not y.is_pending
        assert y.shape == (7, 3)
        assert not s.query()
    torch.testing.assert_close(y.torch(), product(a, b))
    s.synchronize()
    assert s.query()


def test_work_of_one_stream_is_done_in_order() -> None:
    s = stream.create()
    seen: list[int] = []
    for number in range(500):
        s.core.enqueue("note", lambda number=number: seen.append(number))  # type: ignore[misc]
    s.synchronize()
    assert seen == list(range(500))


def test_streams_run_beside_each_other() -> None:
    first, second = stream.create(), stream.create()
    both = threading.Barrier(2, timeout=120)
    first.core.enqueue("meet", lambda: _meet(both))
    second.core.enqueue("meet", lambda: _meet(both))
    first.synchronize()
    second.synchronize()
    assert not both.broken


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait()


def test_a_held_stream_holds_up_no_other_and_not_the_program() -> None:
    slow, quick = stream.create(), stream.create()
    a = torch.randn(13)
    with held(slow):
        y = op.exp(a, stream=slow)
        torch.testing.assert_close(op.relu(a, stream=quick).torch(), a.relu())
        torch.testing.assert_close(op.neg(a).torch(), -a)
        assert not slow.query()
    torch.testing.assert_close(y.torch(), a.exp())


@pytest.mark.parametrize("read", ["torch", "numpy", "array", "dlpack", "repr", "item", "operator", "view", "together"])
def test_reading_waits(read: str) -> None:
    s = stream.create()
    a = torch.randn(1, 1)
    expected = a.exp()
    readers: dict[str, Callable[[Tensor], torch.Tensor]] = {
        "torch": lambda y: y.torch(),
        "numpy": lambda y: torch.from_numpy(y.numpy().copy()),
        "array": lambda y: torch.from_numpy(numpy.array(y)),
        "dlpack": torch.utils.dlpack.from_dlpack,
        "repr": lambda y: torch.tensor([[float(repr(y).split("[[")[1].split("]]")[0])]]),
        "item": lambda y: torch.tensor([[y.item()]]),
        "operator": lambda y: (y + 0).torch(),
        "view": lambda y: y.reshape(1).torch().reshape(1, 1),
        "together": lambda y: op.concat([y, y], 0).eval().torch()[:1],
    }
    gate = threading.Event()
    s.core.enqueue("hold", lambda: _wait(gate))
    y = op.exp(a, stream=s)
    threading.Timer(0.02, gate.set).start()
    torch.testing.assert_close(readers[read](y), expected, atol=1e-3, rtol=1e-3)


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def test_a_chain_over_streams_needs_no_events() -> None:
    streams = [stream.create() for _ in range(3)]
    x = torch.randn(17, 17)
    y = op.tensor(x)
    with held(streams[0]):
        for step in range(30):
            y = op.add(y, 1.0, stream=streams[step % 3])
        assert not streams[2].query()
    torch.testing.assert_close(y.torch(), x + 30)


def test_an_event_orders_streams() -> None:
    first, second = stream.create(), stream.create()
    seen: list[str] = []
    ready = event.create("ready")
    with held(first):
        first.core.enqueue("note", lambda: seen.append("first"))
        ready.record(first)
        ready.wait(second)
        second.core.enqueue("note", lambda: seen.append("second"))
        assert not ready.query()
    second.synchronize()
    assert seen == ["first", "second"]
    assert ready.query()


def test_an_event_never_recorded_holds_nobody_up() -> None:
    s, never = stream.create(), event.create()
    never.wait(s)
    never.synchronize()
    assert never.query()
    assert op.exp(torch.zeros(3), stream=s).tolist() == [1, 1, 1]


def test_the_last_record_before_the_wait_counts() -> None:
    first, second, third = stream.create(), stream.create(), stream.create()
    point = event.create()
    with held(first), held(third):
        point.record(first)
        point.record(second)
        point.wait(third)
        point.record(first)
        point.synchronize  # noqa: B018 - not called: `first` is held
        second.synchronize()
    third.synchronize()
    assert third.query()


def test_waiting_before_recording_on_each_other_is_no_deadlock() -> None:
    first, second = stream.create(), stream.create()
    one, two = event.create(), event.create()
    one.wait(first)
    two.wait(second)
    one.record(second)
    two.record(first)
    one.synchronize()
    two.synchronize()
    assert first.query()


def test_an_event_of_the_own_stream_waits_for_nothing() -> None:
    s, point = stream.create(), event.create()
    with held(s):
        point.record(s)
        point.wait(s)
    s.synchronize()
    assert point.query()


# -- memory of users --------------------------------------------------------------------------------------------------


def test_a_read_after_a_copy_waits_for_it() -> None:
    copying, computing = stream.create(), stream.create()
    x, source, b = torch.full((5, 4), torch.nan), torch.randn(5, 4), torch.randn(4, 3)
    with held(copying):
        memcpy.async_(dst=x, src=source, stream=copying)
        y = op.matmul(x, b, stream=computing)
        assert not computing.query()
        assert x.isnan().all()
    torch.testing.assert_close(y.torch(), product(source, b))


def test_a_copy_waits_for_those_who_read_before() -> None:
    copying, computing = stream.create(), stream.create()
    x, b = torch.randn(5, 4), torch.randn(4, 3)
    expected = product(x, b)
    with held(computing):
        y = op.matmul(x, b, stream=computing)
        memcpy.async_(dst=x, src=torch.zeros(5, 4), stream=copying)
        assert not copying.query()
        assert x.any()
    torch.testing.assert_close(y.torch(), expected)
    copying.synchronize()
    assert not x.any()


def test_the_last_of_two_writes_stays() -> None:
    first, second = stream.create(), stream.create()
    x = torch.empty(100)
    with held(first):
        memcpy.async_(dst=x, src=torch.ones(100), stream=first)
        memcpy.async_(dst=x, src=torch.full((100,), 2.0), stream=second)
    second.synchronize()
    assert (x == 2).all()


def test_parts_of_a_matrix_do_not_hold_each_other_up() -> None:
    first, second = stream.create(), stream.create()
    x = torch.zeros(6, 10)
    with held(first):
        memcpy.async_(dst=x[:, :4], src=torch.ones(6, 4), stream=first)
        memcpy.async_(dst=x[:, 4:], src=torch.full((6, 6), 2.0), stream=second)
        second.synchronize()
        assert (x[:, 4:] == 2).all()
        assert not x[:, :4].any()
        total = op.sum(x, stream=second)
        assert not second.query()
    assert total.item() == 6 * 4 + 6 * 6 * 2


def test_the_program_waits_for_copies_into_what_it_evaluates() -> None:
    copying = stream.create()
    x, source = torch.zeros(9), torch.randn(9)
    (op.tensor(x) * 2).eval()  # the structure is known: the short way of evaluation would be taken
    gate = threading.Event()
    copying.core.enqueue("hold", lambda: _wait(gate))
    memcpy.async_(dst=x, src=source, stream=copying)
    y = op.tensor(x) * 2
    threading.Timer(0.02, gate.set).start()
    torch.testing.assert_close(y.eval().torch(), source * 2)
    copying.synchronize()
    torch.testing.assert_close((op.tensor(x) * 2).torch(), source * 2)


@pytest.mark.parametrize("kind", ["torch", "numpy", "unsupported"])
def test_taking_data_in_another_dtype_waits_for_copies_into_it(kind: str) -> None:
    copying = stream.create()
    x, source = torch.zeros(9), torch.randn(9)
    gate = threading.Event()
    copying.core.enqueue("hold", lambda: _wait(gate))
    memcpy.async_(dst=x, src=source, stream=copying)
    threading.Timer(0.02, gate.set).start()
    if kind == "unsupported":
        assert op.tensor(torch.ones(3, dtype=torch.uint8), dtype="fp32").tolist() == [1, 1, 1]
    else:
        taken = op.tensor(x if kind == "torch" else x.numpy(), dtype="fp64")
        torch.testing.assert_close(taken.torch(), source.double())


def test_a_thread_that_cannot_be_started_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    s = stream.create("crowded")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StreamError, match="'crowded' has no thread: can't start new thread"):
            op.exp(torch.zeros(3), stream=s)
    assert s.query()
    assert op.exp(torch.zeros(3), stream=s).tolist() == [1, 1, 1]
    with pytest.raises(StreamError):
        s.synchronize()


def test_the_program_does_not_write_to_what_is_still_read() -> None:
    computing = stream.create()
    x = torch.randn(8)
    expected = x.exp()
    gate = threading.Event()
    computing.core.enqueue("hold", lambda: _wait(gate))
    y = op.exp(x, stream=computing)
    threading.Timer(0.02, gate.set).start()
    (op.tensor(torch.ones(8)) * 3).eval(out=x)
    assert (x == 3).all()
    torch.testing.assert_close(y.torch(), expected)


def test_an_expression_made_before_a_copy_is_refused() -> None:
    copying = stream.create()
    x = torch.zeros(4)
    before = op.tensor(x) + 1
    with held(copying):
        memcpy.async_(dst=x, src=torch.ones(4), stream=copying)
        after = op.tensor(x) + 1
        with pytest.raises(InputMutatedError):
            op.exp(before, stream=copying)
    with pytest.raises(InputMutatedError):
        before.eval()
    assert after.tolist() == [2, 2, 2, 2]


def test_a_result_into_memory_of_the_user() -> None:
    s = stream.create()
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    out = torch.full((5, 7), torch.nan)
    version = out._version
    with held(s):
        y = op.matmul(a, b, out=out, stream=s)
        assert out._version > version
        assert out.isnan().all()
        z = op.exp(y, stream=s)
    torch.testing.assert_close(y.torch(), product(a, b))
    assert y.torch().data_ptr() == out.data_ptr()
    torch.testing.assert_close(z.torch(), product(a, b).exp())


def test_memory_with_gaps_is_written_too() -> None:
    s = stream.create()
    a = torch.randn(5, 6)
    memory = torch.full((5, 12), torch.nan)
    op.tensor(a).exp().eval(out=memory[:, ::2], stream=s)
    s.synchronize()
    torch.testing.assert_close(memory[:, ::2], a.exp())
    assert memory[:, 1::2].isnan().all()
