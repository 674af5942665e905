"""Requests of the application, without a server."""

from __future__ import annotations

import json
import math
from typing import Any
from wsgiref.util import setup_testing_defaults

from tessera.profiling.trace.table import Trace
from tessera.viewer.app import Viewer
from tessera.viewer.runs import Run, run_of


def viewer_of(*traces: Trace, max_bytes: float = math.inf) -> Viewer:
    """An application that shows these traces."""
    runs: list[Run] = [run_of(trace, f"run {number}") for number, trace in enumerate(traces)]
    return Viewer(lambda: runs, max_bytes=max_bytes)


def asked(application: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request; `headers` as `HTTP_HOST="x"`."""
    path, _, query = path.partition("?")
    environment: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": method}
    setup_testing_defaults(environment)
    environment.update(headers)
    told: list[Any] = []
    body = b"".join(application(environment, lambda status, headers, *_: told.extend([status, headers])))
    return int(told[0].split()[0]), dict(told[1]), body


def answered(application: Any, path: str) -> Any:
    """The JSON of a request that succeeds."""
    status, _, body = asked(application, path)
    assert status == 200, body
    return json.loads(body)
