"""The messages of an attached profile: a frame of fixed size, a JSON object, and bytes.

| bytes | field |
| --- | --- |
| 4 | `TSRA` |
| 2 | version of the protocol |
| 2 | 0 |
| 4 | length of the JSON object |
| 8 | length of the bytes after it |

Numbers are big-endian. Nothing is ever unpickled or evaluated, and no length is believed beyond a limit that the
receiver sets. The client asks and the listener answers, in turn:

| `do` | what it does |
| --- | --- |
| `hello` | tells versions and which process answers |
| `start` | begins a session; `activities`, `record_shapes` as for `profile.session` |
| `read` | gives what was recorded since the last `read`, as `increments` packs it |
| `facts` | counts what there is: plans, sessions, threads |
| `stop` | ends the session, and gives the rest of it |

An answer has `ok`; where that is false `error` says why, and the connection stays as it was.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

VERSION: Final = 2
MAGIC: Final = b"TSRA"
FRAME: Final = struct.Struct("!4sHHIQ")

REQUEST_LIMIT: Final = 64 * 2**10
"""Most bytes of a request, which is JSON alone."""

ANSWER_LIMIT: Final = 2**30
"""Most bytes of an answer: many seconds of a program that does nothing but launch kernels; clients read each second."""

JSON_LIMIT: Final = 64 * 2**20
"""Most bytes of JSON among the bytes of an answer, of which Python's objects take ten times as much."""

HEADER_LIMIT: Final = 4 * 2**20
"""Most bytes of a header: an answer's may hold a command line, of at most 2 MiB on Linux."""

_CHUNK: Final = 2**20

_CLOSED: Final = (errno.EBADF, errno.EINVAL)
"""What `accept` says of a socket that was closed or shut down."""

_AGAIN_S: Final = 0.1
_LEAST_S: Final = 1e-3
"""A time-out of 0 would mean something else."""


class ProtocolError(Exception):
    """What came is no message of this protocol, or ended in the middle of one."""


class Message(NamedTuple):
    """A JSON object and the bytes that go with it."""

    header: dict[str, Any]
    payload: bytes = b""


def connections(listening: socket.socket) -> Iterator[socket.socket]:
    """Those that come, until the socket is closed or shut down. What passes, as a lack of descriptors, ends nothing."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError as error:
            if error.errno in _CLOSED:
                return
            time.sleep(_AGAIN_S)  # no descriptor or memory is left, or the client went
            continue
        yield connection


def send(connection: socket.socket, header: dict[str, Any], payload: bytes = b"", *, whole_s: float) -> None:
    """Sends one message. Raises OSError where the other side is gone, or has not taken all of it in so many seconds."""
    text = json.dumps(header).encode()
    deadline = time.monotonic() + whole_s
    for part in (FRAME.pack(MAGIC, VERSION, 0, len(text), len(payload)) + text, payload):
        if part:
            connection.settimeout(max(deadline - time.monotonic(), _LEAST_S))
            connection.sendall(part)  # in which the time-out is that of the whole


def receive(connection: socket.socket, limit: int, idle_s: float, whole_s: float) -> Message | None:
    """The next message; None where the other side has closed the connection between two messages.

    Waits `idle_s` for its first byte and `whole_s` for the rest. Raises ProtocolError for what is no message, is longer
    than `limit` bytes, or stops half-way; TimeoutError where no message began in time; OSError where the connection
    broke.
    """
    connection.settimeout(idle_s)
    first = connection.recv(FRAME.size)
    if not first:
        return None
    deadline = time.monotonic() + whole_s
    frame = first + _exactly(connection, FRAME.size - len(first), deadline)
    magic, version, _, header_bytes, payload_bytes = FRAME.unpack(frame)
    if magic != MAGIC:
        raise ProtocolError(f"the message begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(f"the message is of version {version} of the protocol, this is version {VERSION}")
    if header_bytes + payload_bytes > limit:
        raise ProtocolError(f"the message says that it has {header_bytes + payload_bytes} bytes, more than {limit}")
    if header_bytes > HEADER_LIMIT:
        raise ProtocolError(f"the message says that its header has {header_bytes} bytes, more than {HEADER_LIMIT}")
    header = _object(_exactly(connection, header_bytes, deadline))
    return Message(header, bytes(_exactly(connection, payload_bytes, deadline)))


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytearray:
    # Grown as it comes: a length that is only claimed takes no memory.
    taken = bytearray()
    while len(taken) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ProtocolError(f"only {len(taken)} of {count} bytes came in time")
        connection.settimeout(left)
        try:
            piece = connection.recv(min(_CHUNK, count - len(taken)))
        except TimeoutError:
            continue
        if not piece:
            raise ProtocolError(f"the connection ended after {len(taken)} of {count} bytes")
        taken += piece
    return taken


def _object(text: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the message's header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError("the message's header is no JSON object")
    return header
