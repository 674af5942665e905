"""HTTP to a server that is not trusted: a request has one deadline for all of it, and its answer a limit.

A socket's own timeout begins anew with every byte. Here each wait is as long as what is left until the deadline, and
what was received is counted below the parser, which therefore cannot be made to read more (endless heads, trailers
and chunks of negative size).
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from typing import Any


class EndlessAnswerError(Exception):
    """An answer has more bytes than were allowed."""


class _Bounded(socket.socket):
    """A socket that ends with TimeoutError at `until`, of `time.monotonic`, and after `allowed` bytes."""

    until = 0.0
    allowed = 0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(left(self.until))
        received = super().recv_into(*args, **kwargs)
        self.allowed -= received
        if self.allowed < 0:
            raise EndlessAnswerError
        return received

    def sendall(self, data: Any, flags: int = 0) -> None:
        with memoryview(data).cast("B") as view:
            sent = 0
            while sent < len(view):
                self.settimeout(left(self.until))
                sent += self.send(view[sent:], flags)


class _BoundedTls(_Bounded, ssl.SSLSocket):
    """The same inside TLS."""


def left(until: float) -> float:
    """Seconds until a time of `time.monotonic`. Raises TimeoutError where it has passed."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("there was no time left")
    return seconds


class HttpConnection(http.client.HTTPConnection):
    """A connection that stays open from one request to the next; `bound` comes before each of them."""

    def __init__(self, host: str, port: int, secure: bool) -> None:
        self.default_port = 443 if secure else 80  # which a request's Host leaves out
        super().__init__(host, port)
        self._context: ssl.SSLContext | None = None
        if secure:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
            self._context.sslsocket_class = _BoundedTls
        self._until = 0.0
        self._allowed = 0

    def bound(self, until: float, allowed: int) -> None:
        """What follows ends at `until`, of `time.monotonic`, with TimeoutError, and with EndlessAnswerError where more
        than `allowed` bytes are received.
        """
        self._until, self._allowed = until, allowed
        self._tell(self.sock)

    def _tell(self, opened: socket.socket | None) -> None:
        if isinstance(opened, _Bounded):
            opened.until, opened.allowed = self._until, self._allowed

    def connect(self) -> None:
        """Connects to the first address that answers, all tries together until the deadline. Raises OSError."""
        failure = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            opened: socket.socket = _Bounded(family, kind, protocol)
            try:
                opened.settimeout(left(self._until))
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    opened.settimeout(left(self._until))  # of the whole handshake
                    opened = self._context.wrap_socket(opened, server_hostname=self.host)
            except OSError as error:
                opened.close()
                failure = error
                continue
            self._tell(opened)
            self.sock = opened
            return
        raise failure
