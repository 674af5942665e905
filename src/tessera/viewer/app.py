"""The viewer as a WSGI application (PEP 3333): the front end's files, and answers about runs as JSON.

It reads only the last component of a path, so that it may be served below a prefix. It writes nothing, and takes no
paths: a run is a number.
"""

from __future__ import annotations

import gzip
import json
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl

from tessera.errors import ProfileError, TesseraError
from tessera.viewer import assets
from tessera.viewer.failures import NotFoundError, error_json
from tessera.viewer.runs import ChangedError, Run
from tessera.viewer.waiting import BusyError, PendingAnswers

Environment = Mapping[str, Any]
StartResponse = Callable[..., Any]

_PACKED_FROM: Final = 1024
"""Bytes from which an answer is compressed."""
_MOST_FIELDS: Final = 20
_GZIP: Final = 31
"""What zlib calls gzip's format, with the largest window."""
_FILES: Final = ("csv", "chrome")
"""What is kept as a file: the browser waits for it, however long it takes."""
_AGAIN_S: Final = "0"
"""After which a page asks again for what was not there in time: at once, as it is the server that waits."""
WAITED_S: Final = 2.0
"""How long a server lets a page wait before it says how far the answer is."""


@dataclass
class Viewer:
    """Serves `runs`, which `find` looks up anew whenever the list is asked for. An answer that would take more than
    `max_bytes` of memory is refused; one that takes longer than `limit_s` is told of as 503 until it is there.
    """

    find: Callable[[], list[Run]]
    runs: list[Run] = field(default_factory=list)
    max_bytes: float = math.inf
    limit_s: float = math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._waiting = PendingAnswers(self.limit_s)

    def load(self) -> None:
        """Imports what answers questions, so that the first one does not wait for it."""
        _questions()

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answers a request."""
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _said(environment, start, "405 Method Not Allowed", {"error": {"message": "only GET and HEAD"}})
        name = environment.get("PATH_INFO", "").rpartition("/")[2] or "index.html"
        try:
            asked = dict(parse_qsl(environment.get("QUERY_STRING", ""), max_num_fields=_MOST_FIELDS))
            return self._answer(environment, start, name, asked)
        except BusyError as error:
            told = {"error": {**error_json(error)["error"], "progress": error.progress}}
            status = "503 Service Unavailable"
            return _said(environment, start, status, told, [("Retry-After", _AGAIN_S)])
        except NotFoundError as error:
            return _failed(environment, start, "404 Not Found", error)
        except ChangedError as error:
            return _failed(environment, start, "410 Gone", error)
        except ProfileError as error:
            return _failed(environment, start, "422 Unprocessable Entity", error)
        except (TesseraError, ValueError) as error:
            return _failed(environment, start, "400 Bad Request", error)

    def _answer(
        self, environment: Environment, start: StartResponse, name: str, asked: Mapping[str, str]
    ) -> Iterable[bytes]:
        content = assets.content(name)
        if content is not None:
            return _sent(environment, start, assets.content_type(name), content)
        if name in _FILES:
            return self._file(environment, start, name, asked)
        answer = self._waiting.answer((name, *sorted(asked.items())), lambda: self._made(name, asked))
        if isinstance(answer, bytes):
            return _sent(environment, start, "application/octet-stream", answer)
        return _said(environment, start, "200 OK", answer)

    def _made(self, name: str, asked: Mapping[str, str]) -> object:
        """The answer to a question: packed slices, or what becomes JSON."""
        if name == "runs":
            there = [{"name": run.name, "version": run.version} for run in self.find()] if "look" in asked else None
            return self._listed() if there is None else there
        return _questions().answer(name, asked, lambda parameter: self._run(asked, parameter), self.max_bytes)

    def _file(
        self, environment: Environment, start: StartResponse, name: str, asked: Mapping[str, str]
    ) -> Iterable[bytes]:
        run = self._run(asked, "run")
        if name == "csv":
            question = asked.get("table", "")
            text = _questions().table(question, asked, run, self.max_bytes)
            kept = [("Content-Disposition", f"attachment; filename={question}.csv")]
            return _sent(environment, start, "text/csv; charset=utf-8", text.encode(), more=kept)
        pieces = _questions().timeline(run)
        disposition = ("Content-Disposition", "attachment; filename=trace.json.gz")
        start("200 OK", [("Content-Type", "application/gzip"), disposition])
        return _gzipped(pieces)

    def _listed(self) -> list[dict[str, Any]]:
        with self._lock:
            for run in self.runs:
                run.renewed()
            known = {run.key: run for run in self.runs}
            self.runs = [known.get(run.key, run) for run in self.find()]
            return [{"run": number, "name": run.name, **run.summary()} for number, run in enumerate(self.runs)]

    def _run(self, asked: Mapping[str, str], name: str) -> Run:
        with self._lock:
            if not self.runs:
                self.runs = self.find()
            number = asked.get(name, "0")
            if not number.isdecimal() or int(number) >= len(self.runs):
                raise NotFoundError(f"there is no run {number!r}")
            return self.runs[int(number)]


def _questions() -> ModuleType:
    """Analyses and numpy take half a second of a processor, and a server that has them to load listens later."""
    from tessera.viewer.pages import questions

    return questions


def _gzipped(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """One gzip member: browsers refuse what follows the first."""
    packing = zlib.compressobj(wbits=_GZIP)
    for piece in pieces:
        yield packing.compress(piece)
    yield packing.flush()


def _failed(environment: Environment, start: StartResponse, status: str, error: Exception) -> Iterable[bytes]:
    return _said(environment, start, status, error_json(error))


def _said(
    environment: Environment,
    start: StartResponse,
    status: str,
    answer: object,
    more: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    body = json.dumps(answer, allow_nan=False, default=str).encode()
    return _sent(environment, start, "application/json", body, status, more)


def _sent(
    environment: Environment,
    start: StartResponse,
    kind: str,
    body: bytes,
    status: str = "200 OK",
    more: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    headers = [("Content-Type", kind), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *more]
    takes_gzip = "gzip" in environment.get("HTTP_ACCEPT_ENCODING", "")
    if takes_gzip and len(body) >= _PACKED_FROM and kind != "application/octet-stream":  # planes are packed already
        body = gzip.compress(body, 1)
        headers.append(("Content-Encoding", "gzip"))
    start(status, [*headers, ("Content-Length", str(len(body)))])
    return [] if environment["REQUEST_METHOD"] == "HEAD" else [body]
