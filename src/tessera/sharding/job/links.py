"""Links: connections between watchers on different hosts, which carry messages as lines of JSON.

The first rank of each host listens, at an address and with a word that ranks hear of through the store of the job;
whoever does not say that word is not heard. Every rank is connected to the first rank of every other host, so that the
kernel says at once that a process has ended. Where nothing comes back for `SILENT_S`, a host is down, or the way to it:
a process that is merely stopped still has a kernel that answers for it.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SILENT_S: Final = 0.6
"""Three beats of a watcher."""
_SEND_S: Final = 1.0
_CONNECT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_LINE_BYTES: Final = 1 << 20
_PORT: Final = 9
"""Nothing is sent to it."""


class Listening(NamedTuple):
    """Where a watcher listens, and the word that it wants to hear."""

    address: str
    port: int
    word: str

    @property
    def text(self) -> str:
        """For the store."""
        return f"{self.address} {self.port} {self.word}"

    @classmethod
    def read(cls, text: str) -> Listening:
        """Of a text."""
        address, port, word = text.split()
        return cls(address, int(port), word)


class WatcherLink:
    """A connection. `rank` is who is at the other end, -1 until it has said so."""

    def __init__(self, connection: socket.socket, rank: int = -1) -> None:
        self.rank = rank
        self._connection = connection
        self._rest = b""
        self._sending = threading.Lock()
        self.is_cut = False
        """Whether it ended because nothing came back."""
        connection.settimeout(_SEND_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENT_S))

    def fileno(self) -> int:
        """The descriptor, which is readable when something has come, or the connection has ended."""
        return self._connection.fileno()

    def send(self, content: Mapping[str, Any]) -> None:
        """Sends a message; nothing where the connection has ended, which `receive` says."""
        with contextlib.suppress(OSError), self._sending:
            self._connection.sendall(json.dumps(content).encode() + b"\n")

    def receive(self) -> list[Mapping[str, Any]] | None:
        """The messages that have come whole; None at the end."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except TimeoutError as error:  # also what the kernel gives up for is one
            if error.errno is None:
                return []
            self.is_cut = True
            return None
        except OSError as error:
            self.is_cut = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
            return None
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if not data or len(self._rest) > _LINE_BYTES:
            return None
        found: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                content = json.loads(line)
            except ValueError:
                return None
            if not isinstance(content, dict):
                return None
            found.append(content)
        return found

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


class Door:
    """Where links come in. `at` is told to those who are to come."""

    def __init__(self, address: str) -> None:
        self._server = socket.create_server((address, 0))
        self.at: Final = Listening(address, self._server.getsockname()[1], secrets.token_hex(16))

    def fileno(self) -> int:
        """The descriptor, which is readable when somebody comes."""
        return self._server.fileno()

    def accept(self) -> WatcherLink | None:
        """A link, of whom nothing is known yet."""
        try:
            return WatcherLink(self._server.accept()[0])
        except OSError:
            return None

    def knows(self, content: Mapping[str, Any]) -> bool:
        """Whether a first message is one of the job's."""
        return isinstance(content.get("rank"), int) and hmac.compare_digest(str(content.get("word")), self.at.word)

    def close(self) -> None:
        """Nobody comes in any more."""
        self._server.close()


def connect(listening: Listening, own: int, rank: int) -> WatcherLink:
    """A link of rank `own` to another rank. Raises OSError where that cannot be reached."""
    link = WatcherLink(socket.create_connection((listening.address, listening.port), timeout=_CONNECT_S), rank)
    link.send({"kind": "hello", "rank": own, "word": listening.word})
    return link


def own_address(towards: str) -> str:
    """This host's address on the way to another one; by its own name where none is given. Raises OSError where there is
    no way.
    """
    if not towards:
        return socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, _PORT))
        address: str = probe.getsockname()[0]
        return address
