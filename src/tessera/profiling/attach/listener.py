"""Listening for clients that want to profile this process: one idle thread that waits in `accept`.

It begins with the first plan that runs (`listen`), and costs nothing after that until a client comes. A fork of the
process has no part in its parent's socket and connections; it listens on its own when it first runs a plan.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

from tessera import settings
from tessera.errors import TesseraError
from tessera.profiling.attach import credentials, places, wire
from tessera.profiling.attach.conversation import Conversation
from tessera.profiling.session import enqueued, replay
from tessera.system.forks import lock

MOST_CLIENTS: Final = 4

_FAREWELL_S: Final = 2.0
"""Most seconds that the end of a process waits for clients to fetch what they have not read."""

_CALL_S: Final = 5.0
"""Most seconds that the first plan waits for the `tessera-prof` that runs the program to begin its session."""


class Listener:
    """A process's socket, and the clients that came."""

    def __init__(self) -> None:
        self._lock = lock()
        self._conversations: list[Conversation] = []
        self._socket: socket.socket | None = None
        self.path: Path | None = None

    def open(self) -> None:
        """Binds the socket, and has a thread wait for clients. Raises OSError where no folder serves."""
        mine = places.process(os.getpid())
        if mine is None:
            raise OSError("the process is not to be seen in /proc")
        folder = places.folder_for(mine.socket_name)
        places.clean(folder)
        path = folder / mine.socket_name
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.bind(str(path))  # nobody else can reach it before the next line: the folder is the user's alone
            path.chmod(0o600)
            opened.listen(MOST_CLIENTS)
        except OSError:
            opened.close()
            raise
        self._socket, self.path = opened, path
        threading.Thread(target=self._accept, args=(opened,), name="tessera-attach", daemon=True).start()

    def call(self, home: Path) -> None:
        """Connects to the `tessera-prof` that runs this program, and waits until it has begun its session. Raises
        OSError where it cannot be reached.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(home))
        except OSError:
            connection.close()
            raise
        made = self._admit(connection)
        if made is not None:
            made.started.wait(_CALL_S)

    def _accept(self, opened: socket.socket) -> None:
        for connection in wire.connections(opened):
            try:
                self._admit(connection)
            except (OSError, RuntimeError):  # RuntimeError: no thread can be started
                connection.close()

    def _admit(self, connection: socket.socket) -> Conversation | None:
        """Talks to a client in a thread of its own, unless it is somebody else's or one too many."""
        if not credentials.may_attach(credentials.peer(connection).uid):
            self._turn_away(connection, "this process belongs to another user")
            return None
        made = Conversation(connection, self._forget)
        with self._lock:
            busy = len(self._conversations) >= MOST_CLIENTS
            if not busy:
                self._conversations.append(made)
        if busy:
            self._turn_away(connection, f"{MOST_CLIENTS} clients are attached, which is the most")
            return None
        try:
            made.begin()
        except RuntimeError:
            self._forget(made)
            raise
        return made

    def _turn_away(self, connection: socket.socket, reason: str) -> None:
        with contextlib.suppress(OSError), connection:
            wire.send(connection, {"ok": False, "error": reason}, whole_s=1.0)

    @property
    def clients(self) -> int:
        """Clients that are connected."""
        return len(self._conversations)

    def _forget(self, ended: Conversation) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._conversations.remove(ended)

    def close(self) -> None:
        """Removes the socket. Clients whose session is on get a moment to fetch the rest."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing alone does not
            self._socket.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        with self._lock:
            recording = [each for each in self._conversations if each.recording]
        if recording:
            with contextlib.suppress(TesseraError):  # which the program is told of by whom it concerns
                enqueued.wait()
        for each in recording:
            each.leaving = True
        deadline = time.monotonic() + _FAREWELL_S
        for each in recording:
            each.done.wait(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a fork: closes this process's copies of its parent's connections, which go on."""
        if self._socket is not None:
            self._socket.close()
        for each in self._conversations:
            each.hang_up()


_lock = lock()
_listener: Listener | None = None
_reason: str | None = None


def listen() -> None:
    """Has the process listen, from the first call on. Never fails: `state()` says what came of it."""
    if _listener is None:
        _begin()


def state() -> str:
    """For people: where this process listens, or why it does not."""
    if _listener is None:
        return "no plan has run yet"
    return _reason or f"listens at {_listener.path}"


def _begin() -> None:
    global _listener, _reason  # noqa: PLW0603 - the process has one
    with _lock:
        if _listener is not None:
            return
        made, _reason = Listener(), None
        now = settings.current()
        if now.profile_home is not None:
            with contextlib.suppress(OSError):  # it has ended, and this process goes on without
                made.call(now.profile_home)
                if now.profile_replay:
                    replay.begin()
        if not now.profile_attach:
            _reason = "TESSERA_PROFILE_ATTACH is off"
        else:
            try:
                made.open()
            except OSError as error:
                _reason = f"cannot listen: {error}"
        atexit.register(made.close)
        _listener = made


def _after_fork() -> None:
    global _listener
    inherited, _listener = _listener, None
    if inherited is not None:
        atexit.unregister(inherited.close)
        inherited.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
