"""Streams that the program orders itself: every order that is not certain is an error, however the work went."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import event, memcpy, op, stream
from tessera.errors import StreamRaceError
from tessera.stream import Stream
from tests.unit.runtime.streams.support import held


def pair() -> tuple[Stream, Stream]:
    return stream.create(name="copying", sync="manual"), stream.create(name="computing", sync="manual")


def test_a_read_of_what_another_stream_copies_is_a_race() -> None:
    copying, computing = pair()
    x, source = torch.zeros(32, 32), torch.ones(32, 32)
    memcpy.async_(dst=x, src=source, stream=copying)
    with pytest.raises(StreamRaceError) as caught:
        op.exp(x, stream=computing)
    text = str(caught.value)
    assert text.startswith("E_STREAM_RACE: exp on stream 'computing' and memcpy on stream 'copying', enqueued at ")
    assert text.count("test_races.py:") == 2
    assert "fp32[32, 32]" in text
    assert "ev.record(copying) after memcpy, ev.wait(computing) before exp" in text
    assert f"{x.data_ptr():#x} to {x.data_ptr() + 4096:#x}" in text


def test_an_event_between_the_two_makes_it_none() -> None:
    copying, computing = pair()
    x, copied = torch.zeros(8), event.create()
    memcpy.async_(dst=x, src=torch.ones(8), stream=copying)
    copied.record(copying)
    copied.wait(computing)
    assert op.add(x, 1.0, stream=computing).tolist() == [2] * 8


def test_an_event_recorded_before_the_copy_does_not_help() -> None:
    copying, computing = pair()
    x, early = torch.zeros(8), event.create()
    early.record(copying)
    memcpy.async_(dst=x, src=torch.ones(8), stream=copying)
    early.wait(computing)
    with pytest.raises(StreamRaceError):
        op.exp(x, stream=computing)


def test_work_that_is_done_races_all_the_same() -> None:
    copying, computing = pair()
    x = torch.zeros(8)
    copy = memcpy.async_(dst=x, src=torch.ones(8), stream=copying)
    while (
        not copy._operation.poll()
    ):  # done, and the program has not asked: so it goes when a kernel happens to be fast
        pass
    with pytest.raises(StreamRaceError):
        op.exp(x, stream=computing)


Waiting = Callable[[Stream, memcpy.Copy, Any], object]

WAYS: dict[str, Waiting] = {
    "stream": lambda s, copy, ev: s.synchronize(),
    "copy": lambda s, copy, ev: copy.wait(),
    "event": lambda s, copy, ev: ev.synchronize(),
    "query": lambda s, copy, ev: _until(copy.query),
    "stream query": lambda s, copy, ev: _until(s.query),
}


def _until(question: Callable[[], bool]) -> None:
    while not question():
        pass


@pytest.mark.parametrize("wait", WAYS.values(), ids=WAYS)
def test_what_the_program_waited_for_comes_before(wait: Waiting) -> None:
    copying, computing = pair()
    x, copied = torch.zeros(8), event.create()
    copy = memcpy.async_(dst=x, src=torch.ones(8), stream=copying)
    copied.record(copying)
    wait(copying, copy, copied)
    assert op.add(x, 1.0, stream=computing).tolist() == [2] * 8


def test_a_value_that_the_program_has_read_comes_before() -> None:
    copying, computing = pair()
    x = torch.ones(8)
    y = op.add(x, 1.0, stream=computing)
    with pytest.raises(StreamRaceError):
        memcpy.async_(dst=x, src=torch.zeros(8), stream=copying)
    assert y.tolist() == [2] * 8
    memcpy.async_(dst=x, src=torch.zeros(8), stream=copying).wait()
    assert not x.any()


def test_the_program_may_have_read_it_in_an_expression() -> None:
    copying, computing = pair()
    x = torch.ones(8)
    y = op.add(x, 1.0, stream=computing)
    assert (y * 2).eval().tolist() == [4] * 8
    memcpy.async_(dst=x, src=torch.zeros(8), stream=copying).wait()
    assert not x.any()


def test_order_is_passed_on() -> None:
    first, second = pair()
    third = stream.create(name="third", sync="manual")
    x, one, two = torch.zeros(8), event.create(), event.create()
    memcpy.async_(dst=x, src=torch.ones(8), stream=first)
    one.record(first)
    one.wait(second)
    two.record(second)
    two.wait(third)
    assert op.add(x, 1.0, stream=third).tolist() == [2] * 8


def test_a_write_after_a_read_is_a_race() -> None:
    copying, computing = pair()
    x = torch.ones(8)
    with held(computing):
        y = op.add(x, 1.0, stream=computing)
        with pytest.raises(StreamRaceError, match=r"memcpy on stream 'copying' and add on stream 'computing'"):
            memcpy.async_(dst=x, src=torch.zeros(8), stream=copying)
    assert y.tolist() == [2] * 8
    assert x.all()


def test_two_writes_are_a_race() -> None:
    first, second = pair()
    out = torch.zeros(3)
    memcpy.async_(dst=out, src=torch.ones(3), stream=first)
    with pytest.raises(StreamRaceError):
        op.tensor(torch.ones(3)).exp().eval(out=out, stream=second)


def test_two_reads_are_none() -> None:
    first, second = pair()
    x = torch.ones(8)
    y, z = op.exp(x, stream=first), op.add(x, 1.0, stream=second)
    torch.testing.assert_close(y.torch(), x.exp())
    assert z.tolist() == [2] * 8


def test_a_result_used_on_another_stream_is_a_race() -> None:
    first, second = pair()
    x, done = torch.ones(8), event.create()
    y = op.add(x, 1.0, stream=first)
    with pytest.raises(StreamRaceError):
        op.exp(y, stream=second)
    done.record(first)
    done.wait(second)
    torch.testing.assert_close(op.exp(y, stream=second).torch(), (x + 1).exp())


def test_after_a_race_the_program_goes_on() -> None:
    copying, computing = pair()
    x = torch.zeros(8)
    memcpy.async_(dst=x, src=torch.ones(8), stream=copying)
    for _ in range(2):
        with pytest.raises(StreamRaceError):
            op.exp(x, stream=computing)
    copying.synchronize()
    torch.testing.assert_close(op.exp(x, stream=computing).torch(), x.exp())


def test_blocks_of_columns_do_not_race() -> None:
    first, second = pair()
    x = torch.zeros(6, 10)
    memcpy.async_(dst=x[:, :4], src=torch.ones(6, 4), stream=first)
    memcpy.async_(dst=x[:, 4:], src=torch.full((6, 6), 2.0), stream=second)
    memcpy.async_(dst=x[:, 2:3], src=torch.zeros(6, 1), stream=first)
    with pytest.raises(StreamRaceError):
        memcpy.async_(dst=x[:, 3:5], src=torch.zeros(6, 2), stream=second)
    first.synchronize()
    second.synchronize()
    assert x.sum() == 6 * 3 + 6 * 6 * 2


def test_memory_that_was_given_up_is_no_longer_compared() -> None:
    first, second = pair()
    for number in range(40):
        # Freed memory comes back at the same address, as other tensors.
        x = torch.full((1000,), float(number))
        target = torch.empty(1000)
        memcpy.async_(dst=target, src=x, stream=first if number % 2 else second)
        (first if number % 2 else second).synchronize()
        y = op.exp(x, stream=first)
        del x, target
        _until(y.state[1][0].owner.work.poll)
        del y
    assert second.query()


def test_an_ordinary_stream_waits_for_a_manual_one() -> None:
    manual, ordinary = stream.create(sync="manual"), stream.create()
    x = torch.zeros(8)
    with held(manual):
        memcpy.async_(dst=x, src=torch.ones(8), stream=manual)
        y = op.add(x, 1.0, stream=ordinary)
        assert not ordinary.query()
    assert y.tolist() == [2] * 8


def test_without_manual_streams_nothing_is_kept() -> None:
    import gc

    from tessera.runtime.streams.stream import tracker

    gc.collect()
    assert len(tracker.manual) == 0


def test_memory_that_work_lets_go_of_is_not_at_work_any_more() -> None:
    s, held_up = stream.create(), threading.Event()
    seen: list[bool] = []

    class Operand:
        def __del__(self) -> None:
            seen.append(operation.done)

    def hold() -> None:
        held_up.wait()

    operation = s.core.enqueue("hold", hold)
    operation.touches = [Operand()]
    held_up.set()
    operation.wait()
    assert seen == [True]
