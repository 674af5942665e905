"""Attaching to real processes: those that run, fork, end in order, are killed, or do not want it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tessera.errors import AttachError
from tessera.profiling.attach import client, places
from tessera.profiling.trace.conversion import records_of
from tests.e2e.programs import Programs


@pytest.fixture
def programs() -> Iterator[Programs]:
    with Programs() as made:
        yield made


def read_until_ended(attachment: client.Attachment) -> None:
    deadline = time.monotonic() + 60
    while not attachment.ended:
        assert time.monotonic() < deadline
        attachment.read()
        time.sleep(0.005)


def test_a_process_listens_from_its_first_plan_to_its_end(programs: Programs) -> None:
    program = programs.start()
    assert program.socket() is None
    with pytest.raises(AttachError, match="does not listen"):
        client.attach(program.pid)

    program.do("step()")
    socket = program.socket()
    assert socket is not None
    assert socket.stat().st_mode & 0o777 == 0o600
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    with client.attach(program.pid) as attachment:
        program.do("step(); step()")
    records = records_of(attachment.recording())
    assert [(record.kind, record.operator, record.region) for record in records] == [
        ("region", "", ""),
        ("kernel", "add", "step"),
    ] * 2
    assert (attachment.hello["pid"], attachment.process.pid) == (program.pid, program.pid)

    # One that ends in order hands over the rest, also what it did after the last read.
    last = client.attach(program.pid)
    program.do("step()")
    program.tell("import atexit; atexit.register(step); sys.exit(7)")
    read_until_ended(last)
    assert (last.complete, last.recording().recorded) == (True, 2)
    assert program.process.wait(120) == 7
    assert not socket.exists()


def test_a_killed_process_leaves_what_was_read_and_a_socket_that_the_next_removes(
    programs: Programs,
) -> None:
    program = programs.start()
    program.do("step()")
    socket = program.socket()
    attachment = client.attach(program.pid)
    program.do("step(); step()")
    attachment.read()
    program.process.send_signal(signal.SIGKILL)
    program.process.wait()
    read_until_ended(attachment)
    assert (attachment.complete, attachment.recording().recorded) == (False, 2)
    attachment.stop()
    assert socket is not None
    assert socket.exists()
    with pytest.raises(AttachError, match="no process has the number"):
        client.attach(program.pid)

    programs.start().do("step()")
    assert not socket.exists()


def test_a_fork_has_a_socket_of_its_own_from_its_first_plan_on(programs: Programs) -> None:
    program = programs.start()
    program.do("step()")
    parents = client.attach(program.pid)
    child = int(
        program.do(
            "r, w = os.pipe(); r2, w2 = os.pipe(); child = os.fork() or "
            "(os.read(r, 1), step(), os.write(w2, b'x'), os.read(r, 1), os._exit(0)); print(child)"
        )
    )
    forked = places.process(child)
    assert forked is not None
    assert not places.sockets(forked)
    program.do("os.write(w, b'1'); os.read(r2, 1)")
    found = places.sockets(forked)
    assert len(found) == 1
    with client.attach(child) as childs:
        assert childs.hello["pid"] == child
    program.do("step()")
    parents.stop()
    assert parents.recording().recorded == 1
    program.do("os.write(w, b'1'); os.waitpid(child, 0)")
    with client.attach(program.pid):
        program.do("step()")


def test_one_that_was_told_not_to_listen_does_not(programs: Programs) -> None:
    program = programs.start(TESSERA_PROFILE_ATTACH="0")
    program.do("step()")
    assert program.socket() is None
    assert program.do("print(listener.state())") == "TESSERA_PROFILE_ATTACH is off"
    assert json.loads(program.do("import threading; print(threading.active_count())")) == 1
