"""Work that fails: told where its value is read, with the place of the call that enqueued it, and to nobody else."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from tessera import event, memcpy, op, settings, stream
from tessera.errors import InputMutatedError, MemoryLimitError, StreamError
from tessera.lazy.policy import is_current
from tessera.stream import Stream
from tests.unit.runtime.streams.support import failing, held


def here() -> str:
    """The line of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def failing_copy(s: Stream, target: torch.Tensor) -> None:
    """A copy into `target` whose source never comes to be."""
    from tessera.lazy.leaves.sources import from_torch

    def fail() -> None:
        raise OSError("the disk is gone")

    s.core.enqueue("read file", fail, writes=[from_torch(target)])


def test_synchronize_tells_once() -> None:
    s = stream.create()
    failing(s, OSError("the disk is gone"))
    with pytest.raises(StreamError, match="fail: OSError: the disk is gone") as caught:
        s.synchronize()
    assert caught.value.where is not None
    assert "support.py:" in caught.value.where
    assert isinstance(caught.value.__cause__, OSError)
    s.synchronize()


def test_the_reader_gets_the_error_and_the_place_of_the_call() -> None:
    s = stream.create()
    a = torch.randn(64, 64)
    chain = op.exp(op.softmax(op.exp(op.matmul(a, a)), axis=0) @ a)  # needs temporaries
    chain.eval()
    with held(s):
        place, y = here(), op.matmul(op.softmax(op.matmul(a, a), axis=0), a, stream=s)
        z = op.exp(y, stream=s)
        y.state[1][0].owner.work.run = _out_of_memory
        other = op.exp(a, stream=s)
    for tensor in (y, z, y):
        with pytest.raises(MemoryLimitError, match="nothing left") as caught:
            tensor.torch()
        assert isinstance(caught.value.__cause__, MemoryLimitError)
    with pytest.raises(MemoryLimitError) as first:
        y.eval()
    assert first.value.where == place
    torch.testing.assert_close(other.torch(), a.exp())


def _out_of_memory() -> None:
    raise MemoryLimitError("nothing left")


def test_a_limit_of_memory_is_kept_at_the_call() -> None:
    s = stream.create()
    a = torch.randn(1 << 10, 1 << 10)
    op.exp(a, stream=s).eval()
    held_back = torch.randn(1 << 10, 1 << 11)
    with settings.override(memory_limit_bytes=1 << 16), pytest.raises(MemoryLimitError):
        op.exp(held_back, stream=s)
    assert s.query()


def test_what_depends_on_a_failure_fails_and_the_rest_goes_on() -> None:
    first, second = stream.create(), stream.create()
    a = torch.randn(5)
    with held(first):
        y = op.exp(a, stream=first)
        y.state[1][0].owner.work.run = _out_of_memory
        below = op.add(y, 1.0, stream=second)
        beside = op.relu(a, stream=second)
    torch.testing.assert_close(beside.torch(), a.relu())
    with pytest.raises(MemoryLimitError, match="nothing left"):
        below.torch()
    later = op.neg(below, stream=second)
    with pytest.raises(MemoryLimitError, match="nothing left"):
        later.torch()
    with pytest.raises(MemoryLimitError, match="nothing left"):
        (y * 2).eval()


def test_a_failed_write_spoils_what_is_read_until_it_is_known() -> None:
    s, other = stream.create(), stream.create()
    x = torch.ones(4)
    failing_copy(s, x)
    with pytest.raises(StreamError, match="disk"):
        (op.tensor(x) + 1).eval()
    with pytest.raises(StreamError, match="disk"):
        op.exp(x, stream=other).torch()
    with pytest.raises(StreamError, match="disk"):
        s.synchronize()
    assert (op.tensor(x) + 1).tolist() == [2] * 4


def test_a_failed_write_is_forgotten_with_its_memory() -> None:
    s = stream.create()
    x = torch.ones(1 << 16)
    address = x.data_ptr()
    failing_copy(s, x)
    while not s.query():
        pass
    del x
    others = [torch.ones(1 << 16) for _ in range(4)]
    assert all((op.tensor(other) + 1).torch().eq(2).all() for other in others)
    assert is_current(None) or address not in {other.data_ptr() for other in others}
    with pytest.raises(StreamError):
        s.synchronize()


def test_a_failure_keeps_no_operands() -> None:
    s = stream.create()
    a, out = torch.randn(9), torch.zeros(9)
    with held(s):
        copy = memcpy.async_(dst=out, src=a, stream=s)
        a.add_(1)
    with pytest.raises(InputMutatedError):
        copy.wait()
    alive = weakref.ref(a), weakref.ref(out)
    del a, out
    gc.collect()
    assert [each() for each in alive] == [None, None]
    with pytest.raises(InputMutatedError):
        s.synchronize()


def test_memory_that_is_written_anew_is_good_again() -> None:
    s = stream.create()
    x = torch.ones(4)
    failing_copy(s, x)
    memcpy.async_(dst=x, src=torch.full((4,), 7.0), stream=s)
    assert op.add(x, 1.0, stream=s).tolist() == [8] * 4
    with pytest.raises(StreamError):
        s.synchronize()


def test_an_event_tells_of_failures_before_it() -> None:
    s, point = stream.create(), event.create()
    failing(s, OSError("gone"))
    point.record(s)
    with pytest.raises(StreamError, match="gone"):
        point.synchronize()


def test_order_alone_passes_no_failure_on() -> None:
    first, second, point = stream.create(), stream.create(), event.create()
    x = torch.ones(3)
    failing(first, OSError("gone"))
    point.record(first)
    point.wait(second)
    assert op.add(x, 1.0, stream=second).tolist() == [2] * 3
    assert op.add(x, 1.0, stream=first).tolist() == [2] * 3
    with pytest.raises(StreamError):
        first.synchronize()


def test_copying_from_a_failed_result_fails() -> None:
    s = stream.create()
    a, x = torch.randn(5), torch.zeros(5)
    with held(s):
        y = op.exp(a, stream=s)
        y.state[1][0].owner.work.run = _out_of_memory
        copy = memcpy.async_(dst=x, src=y, stream=s)
    with pytest.raises(MemoryLimitError, match="nothing left"):
        copy.wait()
    assert not x.any()
    with pytest.raises(MemoryLimitError):
        s.synchronize()
