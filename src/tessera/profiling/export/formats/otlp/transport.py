"""Ways to a collector: HTTP with protobuf bodies, and gRPC (OTLP specification 1.x)."""

from __future__ import annotations

import http.client
import re
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.export.formats.otlp.bounded import EndlessAnswerError, HttpConnection, left
from tessera.profiling.export.formats.otlp.delivery import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    Batch,
    RefusedError,
    RetryableError,
    Transport,
)
from tessera.profiling.recording.texts import printed
from tessera.system.distribution import installing

TIMEOUT_S: Final = 10.0
"""Of one attempt, where its deadline is not nearer."""

_ANSWER_LIMIT: Final = 2**20
"""Most bytes of an answer, its head among them: a collector's has a few numbers and a sentence."""

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", _ANSWER_LIMIT),
    # As long as the pauses between our own attempts; by itself gRPC waits a second and longer.
    ("grpc.initial_reconnect_backoff_ms", round(1000 * FIRST_WAIT_S)),
    ("grpc.min_reconnect_backoff_ms", round(1000 * FIRST_WAIT_S)),
    ("grpc.max_reconnect_backoff_ms", round(1000 * LONGEST_WAIT_S)),
]

_LATER: Final = (429, 502, 503, 504)
_HEADER_NAMES: Final = {
    "http": re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"),
    "grpc": re.compile(r"(?!.*-bin$)[._0-9A-Za-z-]+", re.IGNORECASE),  # those in -bin have bytes
}
_PORTS: Final = {"http": 4318, "grpc": 4317}


def to(endpoint: str, headers: Mapping[str, str]) -> Transport:
    """The way to an endpoint: `http://host:4318` and `https://` by HTTP, `grpc://host:4317` and `grpcs://` by gRPC.

    Raises ArgumentError for another scheme, and ProfileError where a library is missing, naming the extra.
    """
    try:
        parts = urllib.parse.urlsplit(endpoint)
    except (ValueError, AttributeError):  # brackets that do not close; no text
        parts = urllib.parse.SplitResult("", "", "", "", "")
    host, path = parts.hostname or "", parts.path
    named = bool(host) and path.isascii() and (host + path).isprintable() and " " not in host + path
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not named:
        raise ArgumentError(
            f"{printed(repr(endpoint))} is no OTLP endpoint",
            hints=["http://host:4318 goes by HTTP, grpc://host:4317 by gRPC"],
        )
    if not isinstance(headers, Mapping):
        raise ArgumentError(f"{printed(repr(headers))} is no mapping of headers to values")
    _check(endpoint, parts, dict[object, object](headers.items()))
    responses()
    return _Http(parts, headers) if parts.scheme.startswith("http") else _Grpc(parts, headers)


def _check(endpoint: str, parts: urllib.parse.SplitResult, headers: Mapping[object, object]) -> None:
    """Raises ArgumentError for a port or a header that no request can have."""
    try:
        usable = parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ArgumentError(f"{printed(repr(endpoint))} has no port that can be", hints=["ports are 1 to 65535"])
    names = _HEADER_NAMES[parts.scheme.removesuffix("s")]
    for name, value in headers.items():
        named = isinstance(name, str) and names.fullmatch(name)
        if not named or not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            hint = "names are letters, digits and hyphens, values printable ASCII"
            raise ArgumentError(f"the header {printed(repr(name))} cannot be sent", hints=[hint])


def responses() -> dict[str, Any]:
    """What a collector answers, by signal. Raises ProfileError, which names the extra, without the library."""
    try:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise _missing("opentelemetry-proto") from error
    return {
        "traces": trace_service_pb2.ExportTraceServiceResponse,
        "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
    }


def _missing(package: str) -> ProfileError:
    return ProfileError(f"OTLP needs {package}", hints=[installing("otlp")])


def _rejected(signal: str, response: Any) -> int:
    partial = response.partial_success
    return int(partial.rejected_spans if signal == "traces" else partial.rejected_data_points)


class _Http(Transport):
    def __init__(self, parts: urllib.parse.SplitResult, headers: Mapping[str, str]) -> None:
        self._parts = parts
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "tessera", **headers}
        from google.protobuf.message import DecodeError

        self._responses = responses()
        self._unreadable = DecodeError
        self._connection: HttpConnection | None = None

    def send(self, batch: Batch, until: float) -> int:
        path = f"{self._parts.path.rstrip('/')}/v1/{batch.signal}"
        try:
            response, body = self._exchanged(path, batch.payload, until)
        except EndlessAnswerError as error:
            self.close()
            raise RefusedError(f"the answer to {path} has more than {_ANSWER_LIMIT} bytes") from error
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            # The latter two are the parser's, of numbers that cannot be.
            self.close()  # what is left of an exchange must not be taken for the next answer
            reason = printed(error) or type(error).__name__
            raise RetryableError(f"the collector cannot be reached: {reason}") from error
        if response.status in _LATER:
            raise RetryableError(
                f"the collector answered {response.status}", _seconds(response.getheader("Retry-After"))
            )
        if not 200 <= response.status < 300:
            raise RefusedError(f"the collector answered {response.status} {printed(response.reason)} to {path}")
        if not body and response.length is None and not response.chunked:
            raise RetryableError("the collector ended its answer before it said how long it is")
        try:
            answer = self._responses[batch.signal].FromString(body)
        except self._unreadable as error:
            raise RefusedError(f"what answers at {path} is no collector") from error
        return _rejected(batch.signal, answer)

    def _exchanged(self, path: str, payload: bytes, until: float) -> tuple[http.client.HTTPResponse, bytes]:
        """An answer and its body. Raises what sockets and the parser raise, and EndlessAnswerError."""
        if self._connection is None:
            secure = self._parts.scheme == "https"
            port = self._parts.port or (443 if secure else _PORTS["http"])
            self._connection = HttpConnection(self._parts.hostname or "", port, secure)
        connection = self._connection
        connection.bound(min(until, time.monotonic() + TIMEOUT_S), _ANSWER_LIMIT)
        connection.request("POST", path, payload, self._headers)
        response = connection.getresponse()
        body = response.read(_ANSWER_LIMIT)  # so much, as an announced length is allocated before it is received
        if response.length:  # what has no end may say the opposite of what it begins with
            raise http.client.IncompleteRead(body, response.length)
        return response, body

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _seconds(text: str | None) -> float | None:
    """What `Retry-After` says, where it is a number of seconds."""
    return float(text) if text and text.isdecimal() else None


class _Grpc(Transport):
    def __init__(self, parts: urllib.parse.SplitResult, headers: Mapping[str, str]) -> None:
        try:
            import grpc
        except ImportError as error:
            raise _missing("grpcio") from error
        self._grpc = grpc
        host = parts.hostname or ""
        self._address = f"{f'[{host}]' if ':' in host else host}:{parts.port or _PORTS['grpc']}"
        self._secure = parts.scheme == "grpcs"
        self._metadata = [(name.lower(), value) for name, value in headers.items()]
        codes = grpc.StatusCode
        self._later = (
            codes.CANCELLED,
            codes.DEADLINE_EXCEEDED,
            codes.ABORTED,
            codes.OUT_OF_RANGE,
            codes.UNAVAILABLE,
            codes.DATA_LOSS,
            codes.RESOURCE_EXHAUSTED,
        )
        self._responses = responses()
        self._channel: Any = None
        self._calls: dict[str, Any] = {}

    def _open(self) -> None:
        grpc = self._grpc
        if self._secure:
            self._channel = grpc.secure_channel(self._address, grpc.ssl_channel_credentials(), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(self._address, _OPTIONS)
        self._calls = {
            signal: self._channel.unary_unary(
                f"/opentelemetry.proto.collector.{package}.v1.{service}/Export",
                request_serializer=None,  # it is bytes already
                response_deserializer=self._responses[signal].FromString,
            )
            for signal, package, service in (
                ("traces", "trace", "TraceService"),
                ("metrics", "metrics", "MetricsService"),
            )
        }

    def send(self, batch: Batch, until: float) -> int:
        if self._channel is None:
            self._open()
        try:
            patience_s = min(left(until), TIMEOUT_S)
            response = self._calls[batch.signal](batch.payload, timeout=patience_s, metadata=self._metadata)
        except TimeoutError as error:
            raise RetryableError(f"the collector cannot be reached: {error}") from error
        except self._grpc.RpcError as error:
            what = f"the collector answered {error.code().name}"
            if error.code() in self._later:
                raise RetryableError(what) from error
            raise RefusedError(f"{what}: {printed(error.details())}") from error
        return _rejected(batch.signal, response)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
