"""What answers an attaching client may be hostile: its answers are bounded, checked, and fit for a terminal."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import threading
from typing import Any

import pytest

from tessera.errors import AttachError
from tessera.profiling.attach import places, wire
from tessera.profiling.attach.client import Attachment
from tessera.profiling.attach.listener import Listener
from tessera.profiling.attach.wire import FRAME, MAGIC, VERSION

HELLO = {"ok": True, "pid": 7, "start": 8, "rank": 0, "command": ["train.py"]}
START = {"ok": True, "capability": {}}


def answered(*answers: tuple[dict[str, Any], bytes]) -> socket.socket:
    """A connection to something that gives these answers, whatever it is asked."""
    near, far = socket.socketpair()

    def answer() -> None:
        with far:
            for header, payload in answers:
                wire.receive(far, wire.REQUEST_LIMIT, 5.0, 5.0)
                wire.send(far, header, payload, whole_s=60.0)

    threading.Thread(target=answer, daemon=True).start()
    return near


@pytest.mark.parametrize("name", ["pid", "start", "rank", "command"])
@pytest.mark.parametrize("value", [None, "x", -1, 2**80])
def test_a_greeting_that_says_nothing_is_refused(name: str, value: object) -> None:
    with pytest.raises(AttachError, match="does not say who it is"):
        Attachment(answered((HELLO | {name: value}, b"")))


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ({}, b""),
        ({"json": 2, "rows": 0}, b"{}"),
        ({"json": 3, "rows": 0}, b"{x}"),
        ({"json": -1, "rows": 1}, b""),
        ({"json": 2**40, "rows": 1}, b""),
        ({"json": 2, "rows": 0}, b"[]"),
    ],
)
def test_records_that_are_none_end_the_attachment(header: dict[str, Any], payload: bytes) -> None:
    made = Attachment(answered((HELLO, b""), (START, b""), ({"ok": True, "leaving": False, **header}, payload)))
    made.start()
    with pytest.raises(AttachError, match="answers no records"):
        made.read()
    assert made.ended


def test_a_header_is_not_taken_without_bound() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(FRAME.pack(MAGIC, VERSION, 0, wire.HEADER_LIMIT + 1, 0))
        with pytest.raises(wire.ProtocolError, match="header has"):
            wire.receive(near, wire.ANSWER_LIMIT, 1.0, 1.0)


def test_what_a_process_says_reaches_no_terminal_as_it_is() -> None:
    with pytest.raises(AttachError) as caught:
        Attachment(answered(({"ok": False, "error": "\x1b]0;owned\x07", "hints": ["\x1b[2J"]}, b"")))
    assert "\x1b" not in str(caught.value)
    made = Attachment(answered((HELLO | {"command": ["\x1b[2J"]}, b"")))
    assert made.hello["command"] == ["?[2J"]


def test_a_socket_of_another_user_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = places.process(os.getpid())
    assert mine is not None
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime, socket.socket(socket.AF_UNIX) as decoy:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        folder = places.folder_for(mine.socket_name)
        assert folder.is_relative_to(runtime)
        path = folder / mine.socket_name
        decoy.bind(str(path))
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert path in places.sockets(mine)
        monkeypatch.setattr(places, "owner", lambda _: os.geteuid() + 1)
        assert places.sockets(mine) == []


def test_one_failed_accept_does_not_end_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def full(listening: socket.socket) -> tuple[socket.socket, Any]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", full)
    made = Listener()
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime, socket.socket(socket.AF_UNIX) as near:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        made.open()
        try:
            assert failed.wait(60)
            near.connect(str(made.path))
            assert Attachment(near).hello["pid"] == os.getpid()
        finally:
            made.close()
