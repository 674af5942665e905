"""Messages of attached profiles: what goes in comes out, and what is no message is refused without harm."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.attach import wire
from tessera.profiling.attach.wire import FRAME, MAGIC, VERSION, Message, ProtocolError

HEADERS = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def receive(connection: socket.socket, limit: int = 2**20, whole_s: float = 5.0) -> Message | None:
    return wire.receive(connection, limit, 5.0, whole_s)


@given(header=HEADERS, payload=st.binary(max_size=2000))
def test_a_message_arrives_as_it_was_sent(header: dict[str, Any], payload: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        wire.send(near, header, payload, whole_s=60.0)
        assert receive(far) == Message(header, payload)


def test_a_message_longer_than_the_sockets_buffer_arrives(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    payload = bytes(range(256)) * 2**14
    sender = threading.Thread(target=wire.send, args=(near, {"a": 1}, payload), kwargs={"whole_s": 5.0})
    sender.start()
    assert receive(far, limit=2**23) == Message({"a": 1}, payload)
    sender.join()


def test_the_end_between_messages_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    wire.send(near, {}, whole_s=60.0)
    near.close()
    assert receive(far) == Message({})
    assert receive(far) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "begins with b'GET '"),
        (FRAME.pack(MAGIC, VERSION + 1, 0, 0, 0), f"version {VERSION + 1}"),
        (FRAME.pack(MAGIC, VERSION, 0, 2**32 - 1, 0), "more than 1048576"),
        (FRAME.pack(MAGIC, VERSION, 0, 2, 2**63) + b"{}", "more than 1048576"),
        (FRAME.pack(MAGIC, VERSION, 0, 2, 0) + b"[]", "no JSON object"),
        (FRAME.pack(MAGIC, VERSION, 0, 3, 0) + b"\xff\xfe{", "no JSON"),
        (FRAME.pack(MAGIC, VERSION, 0, 200_000, 0) + b"[" * 200_000, "no JSON"),
        (MAGIC, "ended after"),
        (FRAME.pack(MAGIC, VERSION, 0, 10, 0) + b"{", "ended after 1 of 10 bytes"),
    ],
)
def test_what_is_no_message_is_refused(ends: tuple[socket.socket, socket.socket], data: bytes, reason: str) -> None:
    near, far = ends

    def give() -> None:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=give)
    sender.start()
    with pytest.raises(ProtocolError, match=reason):
        receive(far)
    sender.join()


def test_half_a_message_is_not_waited_for_for_ever(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    near.sendall(FRAME.pack(MAGIC, VERSION, 0, 10, 0) + b"{")
    with pytest.raises(ProtocolError, match="only 1 of 10 bytes"):
        receive(far, whole_s=0.05)


def test_silence_is_told_from_half_a_message(ends: tuple[socket.socket, socket.socket]) -> None:
    _, far = ends
    with pytest.raises(TimeoutError):
        wire.receive(far, 2**20, 0.02, 5.0)
