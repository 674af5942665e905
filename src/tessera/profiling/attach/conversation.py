"""What a profiled process answers to one client: the session that the client began, and its records."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from tessera.errors import ArgumentError, TesseraError
from tessera.profiling.attach import places, wire
from tessera.profiling.attach.increments import Taker
from tessera.profiling.attach.wire import Message, ProtocolError
from tessera.profiling.recording.recording import rank
from tessera.profiling.session import sessions
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.sessions import Session
from tessera.system.distribution import VERSION

LEASE_S: Final = 30.0
"""Seconds without a request after which a client counts as gone: one that is stopped must not fill the memory."""

WHOLE_S: Final = 5.0
"""Seconds that a message may take from its first byte to its last, in both directions."""

Answer = tuple[dict[str, Any], bytes]


class Conversation:
    """Answers one client until it goes, in a thread of its own. Whatever ends it, its session ends too."""

    def __init__(self, connection: socket.socket, ended: Callable[[Conversation], None]) -> None:
        self._connection = connection
        self._ended = ended
        self._taker: Taker | None = None
        self.started = threading.Event()
        self.done = threading.Event()
        self.leaving = False
        """The process is about to end: the client is told to fetch the rest now."""

    def begin(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="tessera-attach-client", daemon=True).start()

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the client is gone
                self._converse()
        finally:
            self._end_session()
            self.hang_up()
            self.started.set()
            self.done.set()
            self._ended(self)

    def hang_up(self) -> None:
        """Closes this process's side."""
        self._connection.close()

    @property
    def recording(self) -> bool:
        """Whether the client has a session that is on."""
        return self._taker is not None

    def _converse(self) -> None:
        try:
            while (request := wire.receive(self._connection, wire.REQUEST_LIMIT, LEASE_S, WHOLE_S)) is not None:
                self._send(*self._answer(request))
        except ProtocolError as error:
            self._send({"ok": False, "error": str(error)}, b"")

    def _send(self, header: dict[str, Any], payload: bytes) -> None:
        wire.send(self._connection, header, payload, whole_s=WHOLE_S)

    def _answer(self, request: Message) -> Answer:
        try:
            header, payload = self._done(request)
        except TesseraError as error:
            return {"ok": False, "error": error.message, "hints": error.hints}, b""
        return {"ok": True, "leaving": self.leaving, **header}, payload

    def _done(self, request: Message) -> Answer:
        answers = {"hello": _hello, "facts": _facts, "start": self._start, "read": self._read, "stop": self._stop}
        wanted = request.header.get("do")
        answer = answers.get(wanted) if isinstance(wanted, str) else None
        if answer is None:
            raise ArgumentError(f"no such request: {wanted!r}", hints=[f"requests are {', '.join(answers)}"])
        if request.payload:
            raise ArgumentError(f"{wanted}: a request has no bytes after its header")
        return answer(request.header)

    def _start(self, request: dict[str, Any]) -> Answer:
        if self._taker is not None:
            raise ArgumentError("start: this client's session is on", hints=["stop it first, or connect once more"])
        activities, shapes = request.get("activities", ["cpu"]), request.get("record_shapes", False)
        named = isinstance(activities, list) and all(isinstance(each, str) for each in activities)
        if not named or not isinstance(shapes, bool):
            raise ArgumentError("start: activities is a list of names, record_shapes is true or false")
        session = Session(SessionOptions(activities=tuple(activities), record_shapes=shapes), observer=True)
        session.__enter__()
        self._taker = Taker(session)
        self.started.set()
        return {"start_ns": session.start_ns, "capability": session.capability}, b""

    def _read(self, request: dict[str, Any]) -> Answer:
        if self._taker is None:
            raise ArgumentError(f"{request['do']}: no session is on", hints=["ask for start first"])
        return self._taker.take().pack()

    def _stop(self, request: dict[str, Any]) -> Answer:
        taker = self._taker
        self._end_session()
        self._taker = taker
        try:
            return self._read(request)
        finally:
            self._taker = None

    def _end_session(self) -> None:
        taker, self._taker = self._taker, None
        if taker is not None and taker.session.active:
            taker.session.__exit__(None, None, None)


def _hello(_: dict[str, Any]) -> Answer:
    mine = places.process(os.getpid())
    assert mine is not None
    return {
        "protocol": wire.VERSION,
        "tessera": VERSION,
        "python": sys.version.split()[0],
        "pid": mine.pid,
        "start": mine.start,
        "rank": rank(),
        "command": sys.argv,
    }, b""


def _facts(_: dict[str, Any]) -> Answer:
    return {
        "threads": [each.name for each in threading.enumerate()],
        "sessions": sessions.count(),
        "folder": os.getcwd(),
    }, b""
