"""Streams from their making to their end: what they keep alive, what they leave behind, and what they refuse."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from tessera import event, memcpy, op, stream
from tessera.errors import ArgumentError, ShapeMismatchError
from tests.unit.runtime.streams.support import held


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def test_operands_live_until_they_have_been_read() -> None:
    s = stream.create()
    a = torch.randn(50, 50)
    expected, alive = a.exp(), weakref.ref(a)
    with held(s):
        y = op.exp(a, stream=s)
        del a
        assert alive() is not None
    torch.testing.assert_close(y.torch(), expected)
    s.synchronize()
    gc.collect()
    assert alive() is None


def test_a_result_dropped_unread_is_computed_and_freed() -> None:
    s = stream.create()
    with held(s):
        op.exp(torch.zeros(1000), stream=s)
    s.synchronize()
    assert op.exp(torch.zeros(2), stream=s).tolist() == [1, 1]


def test_a_stream_dropped_with_work_in_it_does_that_work() -> None:
    s = stream.create(name="to be dropped")
    x = torch.zeros(3)
    gate = threading.Event()
    s.core.enqueue("hold", lambda: _wait(gate))
    copy = memcpy.async_(dst=x, src=torch.ones(3), stream=s)
    y = op.exp(x, stream=s)
    thread = next(each for each in threading.enumerate() if each.name == "to be dropped")
    del s
    gc.collect()
    gate.set()
    copy.wait()
    torch.testing.assert_close(y.torch(), torch.ones(3).exp())
    thread.join(60)
    assert not thread.is_alive()


def test_thousands_of_operations_leave_nothing_behind() -> None:
    from tessera.runtime.streams.stream import tracker

    first, second = stream.create(), stream.create()
    x, y = torch.zeros(64), torch.zeros(64)
    for _ in range(1500):
        memcpy.async_(dst=x, src=y, stream=first)
        memcpy.async_(dst=y, src=x, stream=second)
    first.synchronize()
    second.synchronize()
    assert tracker.unfinished == {}
    assert tracker.segments < 600


def test_a_stream_starts_no_thread_before_it_has_work() -> None:
    s = stream.create(name="idle stream")
    assert "idle stream" not in {thread.name for thread in threading.enumerate()}
    op.exp(torch.zeros(2), stream=s).eval()
    assert "idle stream" in {thread.name for thread in threading.enumerate()}


# -- bad input --------------------------------------------------------------------------------------------------------


def test_wrong_operands_are_refused_at_the_call() -> None:
    s = stream.create()
    with pytest.raises(ShapeMismatchError):
        op.matmul(torch.ones(2, 3), torch.ones(4, 5), stream=s)
    with pytest.raises(ArgumentError, match="as a stream"):
        op.exp(torch.ones(2), stream="s0")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="as a stream"):
        event.create().record("s0")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="sync="):
        stream.create(sync="never")  # type: ignore[arg-type]
    assert s.query()


def test_a_stream_inside_a_traced_function_is_refused() -> None:
    s = stream.create()

    @op.kernel
    def traced(x):  # type: ignore[no-untyped-def]
        return op.exp(x, stream=s)

    with pytest.raises(ArgumentError, match="being traced"):
        traced(torch.ones(3))


def test_a_kernel_is_called_on_a_stream() -> None:
    s = stream.create()

    @op.kernel
    def both(x, y):  # type: ignore[no-untyped-def]
        return x * y, op.exp(x)

    x, y = torch.randn(11), torch.randn(11)
    with held(s):
        first, second = both(x, y, stream=s)  # type: ignore[call-arg]
        assert not first.is_pending
        assert not second.is_pending
    torch.testing.assert_close(first.torch(), x * y)
    torch.testing.assert_close(second.torch(), x.exp())


def test_a_kernel_may_have_a_parameter_named_stream() -> None:
    @op.kernel
    def scaled(x, stream):  # type: ignore[no-untyped-def]
        return x * stream

    assert scaled(torch.ones(2), stream=3.0).tolist() == [3, 3]
