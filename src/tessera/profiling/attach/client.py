"""Profiling another process of the same user, which runs Tessera plans and therefore listens.

with client.attach(pid) as attachment:
    time.sleep(1.0)
    attachment.read()
recording = attachment.recording()
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import polars

from tessera.errors import AttachError
from tessera.profiling.attach import credentials, places, wire
from tessera.profiling.attach.increments import Increment, recording_of
from tessera.profiling.attach.places import Process
from tessera.profiling.attach.wire import Message, ProtocolError
from tessera.profiling.recording.recording import Recording
from tessera.profiling.recording.texts import printed
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.trace.conversion import trace_of
from tessera.profiling.trace.table import COLUMNS, Trace

_STRANGE: Final = "what answers there is not Tessera, or of another version"

_ANSWER_S: Final = 10.0
"""Seconds that a process may take to answer: it may hold the interpreter's lock for long."""


_NONSENSE: Final = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError),
    polars.exceptions.PolarsError,
)
"""What comes of records that no process of Tessera writes, wherever on the way to a table they are noticed."""

_CONNECT_S: Final = 1.0
"""Seconds that a connection may take: the system makes it, unless too many wait for the other side."""


class Attachment:
    """A session in another process. `read` fetches what it recorded, `stop` ends it.

    Should the process end meanwhile, `ended` is true and what was read is kept.
    """

    def __init__(self, connection: socket.socket, process: Process | None = None) -> None:
        """`connection` leads to the process, which is that at its other end unless `process` says so."""
        self._connection = connection
        self.hello = _greeting(self._ask(do="hello").header)
        self.process = process or Process(self.hello["pid"], self.hello["start"])
        self.increments: list[Increment] = []
        self._plans: dict[str, Any] = {}
        self.capability: dict[str, str] = {}
        self.ended = False
        """Whether the process has ended, or its side has ended the session."""
        self.complete = False
        """Whether the session was ended in order, so that nothing that it recorded is missing."""
        self._leaving = False
        self._options = SessionOptions()

    def start(self, activities: Sequence[str] = ("cpu",), *, record_shapes: bool = False) -> None:
        """Begins the session. Raises AttachError where the process refuses the activities."""
        answer = self._ask(do="start", activities=list(activities), record_shapes=record_shapes)
        capability = answer.header.get("capability")
        if not isinstance(capability, dict):
            raise AttachError("the process answers no capabilities to `start`", hints=[_STRANGE])
        self.capability = {printed(name): printed(why) for name, why in capability.items()}
        self._options = SessionOptions(activities=tuple(activities), record_shapes=record_shapes)

    def read(self) -> Increment | None:
        """What was recorded since the last call, which is also kept; None where the process has ended. One that is
        about to end, in order, has its session stopped, so that all of it is here.
        """
        if self.ended:
            return None
        found = self._fetch("read")
        if found is not None and self._leaving:
            self.stop()
            self.ended = True
        return found

    def stop(self) -> None:
        """Ends the session, fetches the rest of it and closes the connection."""
        if not self.ended:
            self.complete = self._fetch("stop") is not None
        self.close()

    def close(self) -> None:
        """Closes the connection, which ends the session if it is still on."""
        self._connection.close()

    def recording(self, increments: Sequence[Increment] | None = None) -> Recording:
        """What was recorded, or some increments of it."""
        return recording_of(self.increments if increments is None else increments, self._plans, self._options)

    def trace(self, increments: Sequence[Increment] | None = None) -> Trace:
        """The same as columns. Starts count from `start_ns`."""
        made, rank = trace_of(self.recording(increments)), int(self.hello["rank"])
        events = made.events.with_columns(polars.lit(rank, COLUMNS["rank"]).alias("rank"))
        (own,) = made.metadata["ranks"].values()
        return Trace(events, made.metadata | {"ranks": {str(rank): own}}, made.capability)

    @property
    def start_ns(self) -> int:
        """When the session began, by `time.monotonic_ns`, which all processes of a machine share."""
        return int(self.increments[0].rest["start_ns"]) if self.increments else 0

    def facts(self) -> dict[str, Any]:
        """What the process tells of itself: its threads, sessions and folder."""
        return self._ask(do="facts").header

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.close()

    def _fetch(self, do: str) -> Increment | None:
        try:
            answer = self._exchange({"do": do})
        except (ConnectionError, ProtocolError):
            answer = None  # it died, perhaps in the middle of an answer
        except TimeoutError as error:
            raise AttachError(
                f"process {self.process.pid} does not answer", hints=["it may be stopped, or hang in a call"]
            ) from error
        if answer is None:
            self.ended = True
            return None
        self._leaving = bool(_checked(answer).get("leaving"))
        try:
            found = Increment.unpack(answer.header, answer.payload)
            self._plans |= found.rest["plans"]  # each is told once
            trace_of(recording_of([found], self._plans, self._options))
        except _NONSENSE as error:
            self.ended = True
            self.close()
            what = f"process {self.process.pid} answers no records to {do!r}: {type(error).__name__}: {error}"
            raise AttachError(printed(what), hints=[_STRANGE]) from error
        self.increments.append(found)
        return found

    def _exchange(self, request: dict[str, Any]) -> Message | None:
        with contextlib.suppress(BrokenPipeError):  # one that is turned away finds the reason all the same
            wire.send(self._connection, request, whole_s=_ANSWER_S)
        return wire.receive(self._connection, wire.ANSWER_LIMIT, _ANSWER_S, _ANSWER_S)

    def _ask(self, **request: Any) -> Message:
        try:
            answer = self._exchange(request)
        except (OSError, ProtocolError) as error:
            raise AttachError(f"the process does not answer: {error}") from error
        if answer is None:
            raise AttachError("the process has closed the connection", hints=["it has probably ended"])
        return Message(_checked(answer), answer.payload)


def _checked(answer: Message) -> dict[str, Any]:
    if not answer.header.get("ok"):
        hints = answer.header.get("hints", ())
        raise AttachError(
            f"the process refuses: {printed(answer.header.get('error', 'without a reason'))}",
            hints=map(printed, hints if isinstance(hints, list) else ()),
        )
    return answer.header


def _greeting(header: dict[str, Any]) -> dict[str, Any]:
    """What a process says of itself. Raises AttachError where that is not what a process of Tessera says."""
    numbers = [header.get(name) for name in ("pid", "start", "rank")]
    command = header.get("command")
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers) or not isinstance(command, list):
        raise AttachError("the process does not say who it is", hints=[_STRANGE])
    return header | {"command": [printed(each) for each in command]}


def wanted(pid: int) -> Process:
    """The process of a number, if this user may profile it. Raises AttachError where it is gone or somebody else's."""
    found = places.process(pid)
    if found is None:
        raise AttachError(f"no process has the number {pid}", hints=["it may have ended: look with `pgrep -a python`"])
    with contextlib.suppress(FileNotFoundError):
        owner = places.owner(pid)
        if not credentials.may_profile(owner):
            raise AttachError(
                f"process {pid} belongs to another user ({owner})",
                hints=["run tessera-prof as that user: processes of others are not profiled"],
            )
    return found


def connect(pid: int) -> Attachment | None:
    """A connection to a process, in which no session is on yet; None where the process does not listen.

    Raises AttachError where it is gone, is somebody else's, or refuses.
    """
    process, strangers = wanted(pid), []
    until = time.monotonic() + _ANSWER_S
    for path in places.sockets(process):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_S)
            connection.connect(str(path))
            told = credentials.peer(connection)
            if told.pid == pid:
                return Attachment(connection, process)
            strangers.append(f"{path} belongs to process {told.pid}, not to {pid}")
        except (ConnectionRefusedError, FileNotFoundError):
            pass  # the socket of a process that was killed
        except OSError as error:
            strangers.append(f"process {pid} cannot be reached at {path}: {error.strerror or error}")
        except AttachError:
            connection.close()
            raise
        connection.close()
        if time.monotonic() > until:
            break
    if strangers:
        raise AttachError(printed(strangers[0]))
    return None


def attach(pid: int, activities: Sequence[str] = ("cpu",), *, record_shapes: bool = False) -> Attachment:
    """Begins a session in another process. Raises AttachError where that process does not listen, is gone, is somebody
    else's, or refuses.
    """
    made = connect(pid)
    if made is None:
        raise AttachError(
            f"process {pid} does not listen",
            hints=[
                "a process listens from its first Tessera plan on",
                "unless it was started with TESSERA_PROFILE_ATTACH=0",
            ],
        )
    try:
        made.start(activities, record_shapes=record_shapes)
    except AttachError:
        made.close()
        raise
    return made
