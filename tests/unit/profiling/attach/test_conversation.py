"""A process answers clients: sessions from outside record what runs and change nothing; bad clients do no harm."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tessera import op, profile
from tessera.errors import AttachError
from tessera.profiling.attach import client, conversation, credentials, places, wire
from tessera.profiling.attach.client import Attachment
from tessera.profiling.attach.conversation import Conversation
from tessera.profiling.attach.listener import MOST_CLIENTS, Listener
from tessera.profiling.recording.recording import Recording
from tessera.profiling.ring import recorder
from tessera.profiling.ring.layout import RECORD_FIELDS
from tessera.profiling.session import sessions
from tessera.profiling.trace.conversion import records_of
from tests.unit.profiling.support import FACTS, run, two_step_plan


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener of the test's own, in the temporary folder because a socket's path must be short."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = Listener()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places.Process, "socket_name", f"tessera-{os.getpid()}-{time.monotonic_ns()}.sock")
        made.open()
    yield made
    made.close()
    assert made.path is not None
    assert not made.path.exists()
    assert not recorder.recording()


def connected(listener: Listener) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60.0)
    connection.connect(str(listener.path))
    return connection


def attached(listener: Listener, **options: object) -> Attachment:
    made = Attachment(connected(listener))
    made.start(**options)  # type: ignore[arg-type]
    return made


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_until_idle() -> None:
    wait_for(lambda: sessions.count() == 0)


def test_what_runs_is_recorded_as_by_a_session_inside(listener: Listener) -> None:
    plan = two_step_plan()
    with attached(listener, record_shapes=True) as attachment, profile.session(record_shapes=True) as inside:
        with profile.region("forward"):
            run(plan, 3)
        profile.counter("loss", 0.5, "scalar")
    outside = attachment.recording()
    assert (outside.launched, outside.recorded, outside.dropped) == (6, 6, 0)
    shift = inside.start_ns - outside.start_ns
    assert shift >= 0

    def told(recording: Recording, later: int) -> list[tuple[object, ...]]:
        return [
            (
                *(record.kind, record.kernel_name, record.schedule, record.fused, record.shapes, record.region),
                *(round(1000 * instant) + later for instant in (record.start_us, record.end_us)),
            )
            for record in records_of(recording)
            if record.kind != "counter"  # which each session notes by itself, a moment apart
        ]

    assert told(outside, 0) == told(inside.recording, shift)
    assert [(name, value, unit) for _, name, value, unit in outside.counters] == [("loss", 0.5, "scalar")]


def test_increments_are_disjoint_and_whole(listener: Listener) -> None:
    plan = two_step_plan()
    with attached(listener) as attachment:
        counts = []
        for times in (2, 0, 3):
            run(plan, times)
            found = attachment.read()
            assert found is not None
            counts.append(len(found.rows))
        run(plan)
    assert counts == [4, 0, 6]
    recording = attachment.recording()
    assert (recording.launched, recording.recorded, attachment.complete) == (12, 12, True)
    starts, steps = (recording.kernel_rows()[:, RECORD_FIELDS.index(name)].tolist() for name in ("start", "step"))
    assert len(set(starts)) == 12
    assert steps == [0, 1] * 6
    last = records_of(attachment.recording(attachment.increments[-1:]))
    assert [record.operator for record in last] == ["add", "double"]


def test_what_a_plan_computes_comes_along(listener: Listener) -> None:
    with attached(listener) as attachment:
        op.matmul(op.tensor((8, 8)), op.tensor((8, 8))).eval()
    (tell,) = attachment.recording().plans.values()
    assert tell()
    assert not {"unavailable"} & tell().keys()


def test_a_session_from_outside_changes_nothing_in_the_program(listener: Listener) -> None:
    with profile.session() as own:
        pass
    x = op.tensor((4, 4))
    with attached(listener):
        dropped = op.add(x, x)
        assert sessions.current() is own
        with profile.region("forward"):
            pass
        assert dropped.is_pending
    assert sessions.current() is own
    assert dropped.is_pending


def test_two_clients_at_once_each_get_everything(listener: Listener) -> None:
    plan = two_step_plan()
    with attached(listener) as first:
        run(plan)
        with attached(listener) as second:
            run(plan)
        run(plan)
    assert (first.recording().recorded, second.recording().recorded) == (6, 2)


def test_a_client_too_many_is_turned_away_and_a_place_that_is_free_is_given(listener: Listener) -> None:
    many = [attached(listener) for _ in range(MOST_CLIENTS)]
    with pytest.raises(AttachError, match=f"{MOST_CLIENTS} clients are attached"):
        Attachment(connected(listener))
    for each in many:
        each.stop()
    wait_for(lambda: listener.clients == 0)
    attached(listener).stop()


def test_a_client_that_dies_ends_its_session(listener: Listener) -> None:
    attachment = attached(listener)
    assert recorder.recording()
    attachment.close()
    wait_until_idle()
    assert not recorder.recording()


def test_a_client_that_falls_silent_ends_its_session(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LEASE_S", 0.05)
    attachment = attached(listener)
    wait_until_idle()
    assert attachment.read() is None
    assert attachment.ended
    assert not attachment.complete


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 4096, b"GET / HTTP/1.0\r\n\r\n", wire.FRAME.pack(wire.MAGIC, wire.VERSION, 0, 2**31, 2**40), b"TSRA\0\1"],
)
def test_garbage_ends_its_connection_and_nothing_else(listener: Listener, garbage: bytes) -> None:
    with attached(listener) as attachment:
        with connected(listener) as hostile:
            hostile.sendall(garbage)
            hostile.shutdown(socket.SHUT_WR)
            answer = wire.receive(hostile, 2**20, 5.0, 5.0)
            assert answer is not None
            assert answer.header["ok"] is False
            wait_for(lambda: listener.clients == 1)
        run(two_step_plan())
    assert attachment.recording().recorded == 2


def test_garbage_in_the_middle_of_a_session_ends_that_session(listener: Listener) -> None:
    attachment = attached(listener)
    attachment._connection.sendall(b"garbage" * 10)
    wait_until_idle()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"do": "quit"}, "no such request: 'quit'"),
        ({"do": ["read"]}, "no such request"),
        ({}, "no such request: None"),
        ({"do": "read"}, "no session is on"),
        ({"do": "stop"}, "no session is on"),
        ({"do": "start", "activities": "cpu"}, "activities is a list"),
        ({"do": "start", "activities": [1]}, "activities is a list"),
        ({"do": "start", "record_shapes": 1}, "activities is a list"),
        ({"do": "start", "activities": ["quantum"]}, "no such activity: quantum"),
    ],
)
def test_a_bad_request_is_refused_and_the_connection_goes_on(
    listener: Listener, request_: dict[str, object], reason: str
) -> None:
    with connected(listener) as connection:
        wire.send(connection, request_, whole_s=60.0)
        answer = wire.receive(connection, 2**20, 5.0, 5.0)
        assert answer is not None
        assert answer.header["ok"] is False
        assert reason in answer.header["error"]
        attachment = Attachment(connection)
        attachment.start()
        with pytest.raises(AttachError, match="session is on"):
            attachment.start()
        attachment.stop()


def test_a_request_with_bytes_after_it_is_refused(listener: Listener) -> None:
    with connected(listener) as connection:
        wire.send(connection, {"do": "hello"}, b"pickle", whole_s=60.0)
        answer = wire.receive(connection, 2**20, 5.0, 5.0)
        assert answer is not None
        assert "no bytes" in answer.header["error"]


def test_another_users_client_is_turned_away(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = credentials.Peer(1, os.geteuid() + 1, 0)
    monkeypatch.setattr(credentials, "peer", lambda _: stranger)
    with pytest.raises(AttachError, match="belongs to another user"):
        Attachment(connected(listener))


def test_who_is_at_the_other_end_is_the_kernels_word(listener: Listener) -> None:
    with connected(listener) as connection:
        assert credentials.peer(connection) == (os.getpid(), os.getuid(), os.getgid())
    assert credentials.may_attach(os.geteuid())
    assert credentials.may_attach(0)
    assert not credentials.may_attach(os.geteuid() + 1)


def test_only_the_user_and_root_may_profile_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert credentials.may_profile(1000)
    assert not credentials.may_profile(1001)
    monkeypatch.setattr(places, "owner", lambda _: 1001)
    with pytest.raises(AttachError, match="belongs to another user") as refusal:
        client.attach(os.getpid())
    assert refusal.value.code == "E_ATTACH"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert credentials.may_profile(1001)


def test_a_process_that_is_gone_is_named() -> None:
    with pytest.raises(AttachError, match="no process has the number 4194305"):
        client.attach(2**22 + 1)


def test_a_process_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWER_S", 0.05)
    near, far = socket.socketpair()
    with near, far, pytest.raises(AttachError, match="does not answer"):
        Attachment(near)


def test_an_answer_cut_short_keeps_what_was_read(listener: Listener) -> None:
    near, far = socket.socketpair()
    served = Conversation(far, lambda _: None)
    served.begin()
    attachment = Attachment(near)
    attachment.start()
    run(two_step_plan())
    attachment.read()
    far.shutdown(socket.SHUT_RDWR)
    assert served.done.wait(60)
    assert attachment.read() is None
    assert attachment.ended
    assert attachment.recording().recorded == 2


def test_the_end_of_the_process_waits_until_clients_have_the_rest(listener: Listener) -> None:
    attachment = attached(listener)
    run(two_step_plan())
    closing = threading.Thread(target=listener.close)
    closing.start()
    while not attachment.ended:
        attachment.read()
        time.sleep(0.001)
    closing.join()
    assert attachment.complete
    assert attachment.recording().recorded == 2
    assert attachment.recording().step_facts(*attachment.recording().kernel_rows()[0, 3:5].tolist()) == FACTS[0]
