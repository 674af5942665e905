"""Streams in the life of a process: its end, its forks, its threads, and the cores that streams share."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from tessera import memcpy, op, stream
from tessera.runtime.streams.cores import Cores
from tests import forked
from tests.unit.runtime.streams.support import held

AT_EXIT = """
import sys, threading, torch
from tessera import memcpy, op, stream
s = stream.create(name="last")
x = torch.zeros(3)
s.core.enqueue("hold", lambda: threading.Event().wait(0.2))
memcpy.async_(dst=x, src=torch.ones(3), stream=s)
s.core.enqueue("tell", lambda: print("done", x.tolist(), flush=True))
import atexit
{more}
print("leaving", flush=True)
"""

LATE = """
def late():
    s.core.enqueue("late", lambda: print("late", flush=True))
    s.synchronize()
import tessera.runtime.streams.queues as queues
atexit.unregister(queues.finish_all); atexit.register(late); atexit.register(queues.finish_all)
"""


def run(program: str) -> str:
    done = forked.run(program, warm=True)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


def test_what_is_queued_at_the_end_of_the_process_is_done() -> None:
    assert run(AT_EXIT.format(more="")) == "leaving\ndone [1.0, 1.0, 1.0]\n"


def test_work_enqueued_while_the_process_ends_is_done_in_its_order() -> None:
    assert run(AT_EXIT.format(more=LATE)) == "leaving\ndone [1.0, 1.0, 1.0]\nlate\n"


DROPPED = """
import atexit, gc, threading, time, weakref
import tessera.runtime.streams.queues as queues
from tessera import stream
from tessera.profiling.recording import tracks
def leave():
    running = [each.name for each in threading.enumerate()]
    print("still there" if "dropped" in running else "left", flush=True)
end = tracks.end
def slow_end():
    ending.set()
    time.sleep(0.5)
    end()
tracks.end, ending = slow_end, threading.Event()
s = stream.create(name="dropped")
s.core.enqueue("work", lambda: None)
s.synchronize()
gone = weakref.ref(s.core.queue)
del s
ending.wait()
gc.collect()
assert gone() is None
atexit.unregister(queues.finish_all); atexit.register(leave); atexit.register(queues.finish_all)
"""


def test_the_thread_of_a_dropped_stream_has_ended_before_the_interpreter_does() -> None:
    assert run(DROPPED) == "left\n"


FORK = """
import os, threading, torch
from tessera import memcpy, op, stream
from tessera.errors import StreamError
s = stream.create(name="forked")
gate = threading.Event()
x, a = torch.zeros(3), torch.ones(3)
op.exp(a, stream=s).eval()
s.core.enqueue("hold", lambda: gate.wait(60))
y = op.exp(a, stream=s)
copy = memcpy.async_(dst=x, src=a, stream=s)
child = os.fork()
if child == 0:
    try:
        y.torch()
    except StreamError as error:
        print("child:", error.message.split(",")[0], flush=True)
    try:
        s.synchronize()
    except StreamError as error:
        print("child: told", flush=True)
    print("child:", op.add(a, 1.0, stream=s).tolist(), flush=True)
    os._exit(0)
gate.set()
os.waitpid(child, 0)
copy.wait()
print("parent:", x.tolist(), torch.equal(y.torch(), a.exp()), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_is_told_what_it_lost_and_can_use_streams() -> None:
    assert run(FORK) == (
        "child: exp was enqueued before this process forked\nchild: told\nchild: [2.0, 2.0, 2.0]\n"
        "parent: [1.0, 1.0, 1.0] True\n"
    )


def test_threads_may_share_streams() -> None:
    streams = [stream.create() for _ in range(3)]
    a = torch.randn(31)
    wrong: list[int] = []

    def work(number: int) -> None:
        y = op.tensor(a)
        for step in range(60):
            y = op.add(y, 1.0, stream=streams[(number + step) % 3])
        if not torch.allclose(y.torch(), a + 60, atol=1e-4):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_many_streams_and_one_target_end_in_the_order_of_the_calls() -> None:
    streams = [stream.create() for _ in range(8)]
    x = torch.zeros(257)
    with held(streams[0]):
        for number in range(200):
            memcpy.async_(dst=x, src=torch.full((257,), float(number)), stream=streams[number % 8])
    for s in streams:
        s.synchronize()
    assert (x == 199).all()


def test_a_deep_chain_of_streams_is_freed() -> None:
    s = stream.create()
    y = op.tensor(torch.zeros(2))
    for _ in range(3000):
        y = op.add(y, 1.0, stream=s)
    assert y.tolist() == [3000, 3000]
    del y


def test_kernels_of_streams_take_turns_at_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.runtime.streams.cores.worker_count", lambda: 2)
    shared, most, lock = Cores(), [0], threading.Lock()

    def use(count: int) -> None:
        for _ in range(20):
            with shared.taken(count):
                with lock:
                    most[0] = max(most[0], shared.in_use)
                time.sleep(0)

    threads = [threading.Thread(target=use, args=(count,)) for count in (1, 2, 1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [2]
    assert shared.in_use == 0
