"""A process that has imported all that work needs and forks the processes that do it: a fresh one takes milliseconds,
where starting Python and importing torch takes seconds.

The server computes nothing and has one thread, so that its forks are whole: what a candidate breaks dies with its
process, and the next request gets another one. `forkserver_client.py` is the tuner's end. Started as ``python -m
MODULE CONTROL REQUESTS:REPLIES ...`` with descriptors of pipes: a byte on CONTROL kills the process of that channel,
its end all.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

REQUEST: Final = struct.Struct("<Q")
"""Length of a request, before its bytes."""
FRAME: Final = struct.Struct("<cH")
"""Kind and length of a part of a reply, before its bytes. A part is written in one piece, so that none is ever cut."""
MORE, LAST, DIED = b"+", b".", b"!"
"""Kinds of parts: of a reply with more to come, the last of a reply, and the end of the process that was to reply."""

_PART: Final = select.PIPE_BUF - FRAME.size
_TAIL: Final = 600
"""Bytes of a dead process's last words that are kept."""
_POLL_S: Final = 1.0


class Connection:
    """A channel as the process that serves it sees it."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies

    def receive(self) -> bytes | None:
        """The next request, waiting for it; None at the end."""
        header = self._read(REQUEST.size)
        return None if header is None else self._read(REQUEST.unpack(header)[0])

    def send(self, body: bytes) -> None:
        """Sends a reply."""
        parts = [body[at : at + _PART] for at in range(0, len(body), _PART)] or [b""]
        for number, part in enumerate(parts, 1):
            kind = LAST if number == len(parts) else MORE
            os.write(self._replies, FRAME.pack(kind, len(part)) + part)

    def _read(self, count: int) -> bytes | None:
        parts = []
        while count:
            part = os.read(self._requests, count)
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


Body: TypeAlias = Callable[[Connection], None]
"""Answers requests until there are no more."""


@dataclass
class _Channel:
    requests: int
    replies: int
    words: int
    """A file that takes what the process prints."""
    child: int | None = None


def run(body: Body) -> None:
    """Serves until the tuner is gone; what was imported before is there in every process."""
    control, *pairs = sys.argv[1:]
    ends = [pair.split(":") for pair in pairs]
    channels = [_Channel(int(requests), int(replies), _words_file()) for requests, replies in ends]
    _Server(int(control), channels, body).run()


def _words_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Server:
    def __init__(self, control: int, channels: list[_Channel], body: Body) -> None:
        self._control, self._channels, self._body = control, channels, body
        self._parent = os.getppid()
        self._wake = os.pipe()

    def run(self) -> None:
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake[1])
        gc.freeze()  # pages of what is there already stay shared
        try:
            while self._turn():
                pass
        finally:
            for channel in self._channels:
                self._kill(channel)

    def _turn(self) -> bool:
        """Waits for something to happen and does what it takes; whether to go on."""
        waiting = {each.requests: each for each in self._channels if each.child is None}
        ready, _, _ = select.select([self._control, self._wake[0], *waiting], [], [], _POLL_S)
        if os.getppid() != self._parent:
            return False
        if self._control in ready:
            number = os.read(self._control, 1)
            if not number:
                return False
            self._kill(self._channels[number[0]])
        if self._wake[0] in ready:
            os.read(self._wake[0], 1 << 12)
        for channel in self._channels:
            self._reap(channel)
        for descriptor in ready:
            if descriptor in waiting:
                self._fork(waiting[descriptor])
        return True

    def _kill(self, channel: _Channel) -> None:
        if channel.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(channel.child, signal.SIGKILL)

    def _reap(self, channel: _Channel) -> None:
        if channel.child is None:
            return
        pid, status = os.waitpid(channel.child, os.WNOHANG)
        if not pid:
            return
        channel.child = None
        code = os.waitstatus_to_exitcode(status)
        size = os.fstat(channel.words).st_size
        words = os.pread(channel.words, _TAIL, max(size - _TAIL, 0)).decode(errors="replace").strip()
        note = json.dumps({"returncode": code, "words": words}).encode()
        _drain(channel.requests)
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more, as the control pipe is about to tell
            os.write(channel.replies, FRAME.pack(DIED, len(note)) + note)

    def _fork(self, channel: _Channel) -> None:
        os.ftruncate(channel.words, 0)
        os.lseek(channel.words, 0, os.SEEK_SET)
        channel.child = os.fork()
        if channel.child == 0:
            self._serve(channel)

    def _serve(self, channel: _Channel) -> None:
        """In the forked process: answers requests, and ends it."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A candidate that prints must not damage the replies.
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(channel.words, 1)
            os.dup2(channel.words, 2)
            others = [fd for each in self._channels for fd in (each.requests, each.replies) if each is not channel]
            for other in (self._control, *self._wake, *others):
                os.close(other)
            _bow_to_others()
            threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
            self._body(Connection(channel.requests, channel.replies))
            status = 0
        finally:
            # Not by leaving: the server's own stack lies below, and what ends with a program is the server's.
            if status:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)


def _bow_to_others() -> None:
    """No dumps of memory, which take seconds; and where memory runs out, this process goes first, not the user's."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def _drain(descriptor: int) -> None:
    """Forgets the rest of a request that nobody will answer."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 1 << 16):
            pass
    os.set_blocking(descriptor, True)


def _leave_with_parent(parent: int) -> None:
    # A candidate that hangs keeps the main thread from seeing the end of its input; kernels run without the GIL.
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)
