"""The local server of `tessera-prof view`: a thread for each request, on the loopback interface, for one user.

Other users of the machine, and pages of other sites in the same browser, reach the port as well. So the first address
holds a random token, which becomes a cookie that no other site's requests carry, and the request must name this server
as its host (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import socketserver
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tessera.viewer.app import Environment, StartResponse

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = [
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
_TOKEN_BYTES: Final = 16
_SECONDS_OF_SILENCE: Final = 30
"""After which a connection that asks for nothing is closed."""

Application = Callable[[Environment, StartResponse], Iterable[bytes]]


class Guard:
    """Lets those requests through to an application that its user's browser made from its own pages."""

    def __init__(self, application: Application, hosts: Iterable[str]) -> None:
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self._application = application
        self._hosts = frozenset(hosts)
        self._cookie = f"tessera-{secrets.token_hex(4)}"  # cookies do not tell ports apart

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answers a request, with 403 where it is somebody else's."""
        host, origin = environment.get("HTTP_HOST", ""), environment.get("HTTP_ORIGIN")
        if host not in self._hosts or (origin is not None and origin != f"http://{host}"):
            return _refused(start, "this address is not the viewer's own")
        given = parse_qs(environment.get("QUERY_STRING", "")).get("token", [""])[0]
        if self._is_token(given):
            cookie = f"{self._cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            start("303 See Other", [*_HEADERS, ("Location", "/"), ("Set-Cookie", cookie), ("Content-Length", "0")])
            return []
        if not self._is_token(self._cookie_of(environment)):
            return _refused(start, "open the address that tessera-prof printed, with its token")

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            given = {name.lower() for name, _ in headers}
            return start(status, [*headers, *(each for each in _HEADERS if each[0].lower() not in given)], *rest)

        return self._application(environment, started)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie_of(self, environment: Environment) -> str:
        try:
            found = SimpleCookie(environment.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


def _refused(start: StartResponse, why: str) -> Iterable[bytes]:
    body = f"tessera-prof: {why}\n".encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start("403 Forbidden", [*headers, *_HEADERS])
    return [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Binds without asking a name server for this host's name, as its base does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS_OF_SILENCE

    def log_message(self, format: str, *values: Any) -> None:
        """Says nothing: addresses hold the token."""

    def address_string(self) -> str:
        """The client's address, without asking a name server for its name."""
        return str(self.client_address[0])


def serving(application: Application, host: str, port: int) -> tuple[WSGIServer, str]:
    """A server that listens, and the address with the token to open; `serve_forever` answers. Raises OSError where the
    port cannot be had.
    """
    # The guard needs the port, which is known when the server listens.
    server = make_server(host, port, lambda environment, start: [], server_class=_Server, handler_class=_Handler)
    number = server.server_address[1]
    shown = host if host not in ("0.0.0.0", "::") else "127.0.0.1"
    guard = Guard(application, [f"{name}:{number}" for name in {shown, "127.0.0.1", "localhost", "[::1]"}])
    server.set_app(guard)
    return server, f"http://{shown}:{number}/?token={guard.token}"
