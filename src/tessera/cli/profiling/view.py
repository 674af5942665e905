"""`tessera-prof view`: shows traces in a browser."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIServer

import typer

from tessera.errors import ArgumentError
from tessera.viewer.app import WAITED_S, Viewer
from tessera.viewer.memory import default_bytes
from tessera.viewer.runs import Run, runs_at
from tessera.viewer.server import serving

LOOPBACK = ("127.0.0.1", "localhost")
TRIED = 20
"""Ports that are tried, the one that is asked for first."""


def view(
    traces: Annotated[list[Path], typer.Argument(help="Traces; folders of ranks, or of many runs.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen, or at the next free port; 0 for any.")
    ] = 0,
    host: Annotated[str, typer.Option(help="Where to listen; others than 127.0.0.1 let others see it.")] = "127.0.0.1",
    max_memory: Annotated[
        float | None, typer.Option(min=0.1, help="GB that an answer may take; else half of what is available.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show traces in a browser: timeline, kernels, roofline, and two runs side by side."""

    def found() -> list[Run]:
        return [run for path in traces for run in runs_at(path)]

    runs = found()
    if len(runs) == 1:
        runs[0].trace()  # says now what cannot be read; among several it is the page that says so
    limit = default_bytes() if max_memory is None else max_memory * 1e9
    viewer = Viewer(found, runs, max_bytes=limit, limit_s=WAITED_S)
    server, address = _listening(viewer, host, port)
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), server:
        _tell(host, address, open_)
        threading.Thread(target=viewer.load, daemon=True).start()  # while the browser reads the page
        server.serve_forever()


def _listening(viewer: Viewer, host: str, port: int) -> tuple[WSGIServer, str]:
    """A server at a port, or at the next one that is free. Raises ArgumentError where there is none."""
    for number in [port] if port == 0 else range(port, min(port + TRIED, 65536)):
        try:
            return serving(viewer, host, number)
        except OSError as error:
            failure = error
            if error.errno != errno.EADDRINUSE:
                break
    why = failure.strerror or failure
    raise ArgumentError(f"{host}:{port} cannot be listened at: {why}", hints=["--port 0 takes any that is free"])


def _tell(host: str, address: str, opens: bool) -> None:
    """Says where the viewer is, and opens it in a browser where there may be one."""
    if host not in LOOPBACK:
        print(f"tessera-prof: everybody who can reach {host} and knows the address can see the traces", flush=True)
    print(f"tessera-prof: {address} (Ctrl-C ends)", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        port = urlsplit(address).port
        print(f"tessera-prof: from your own machine first: ssh -L {port}:127.0.0.1:{port} THIS_HOST", flush=True)
    elif opens:
        threading.Thread(target=_open, args=(address,), daemon=True).start()


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
