"""Collectors that are slow, endless, broken or malicious: what is sent to them ends, in time, and is counted."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tessera import profile
from tessera.errors import ArgumentError
from tessera.profiling.export.formats.otlp import encoding, transport
from tessera.profiling.export.formats.otlp.exporter import OtlpExporter
from tests.unit.profiling.export.formats.otlp.collectors import GrpcCollector
from tests.unit.profiling.export.formats.otlp.test_otlp import kernels, wait_until

ITEMS = encoding.count(kernels(5))
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MEGABYTE = bytes(2**20)
SLOW_S = 0.02
OUT_OF_TIME = [f"the collector cannot be reached: {why}" for why in ("timed out", "there was no time left")]
"""What is said of a request during which the deadline passes: on a busy machine, the last one of some batches."""


class Hostile:
    """A server that answers each request with pieces of bytes, one after the other, and then closes."""

    def __init__(self, pieces: Callable[[], Iterator[bytes]], pause_s: float = 0.0, reads: bool = True) -> None:
        self._pieces, self._pause_s, self._reads = pieces, pause_s, reads
        self.asked = 0
        self.given = 0
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self.port = self._listening.getsockname()[1]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._answer, args=(accepted,), daemon=True))
                self._threads[-1].start()

    def _answer(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted:
            if self._reads:
                accepted.recv(1 << 20)
            self.asked += 1
            for piece in self._pieces():
                accepted.sendall(piece)
                self.given += len(piece)
                if self._over.wait(self._pause_s):
                    break

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):  # it was closed already
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(60.0)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hostile]]:
    """Makes servers, which end with the test; and no thread of an exporter is left then. One request alone may take so
    long that who waits for its end, and not for the exporter's, is told from a busy machine.
    """
    monkeypatch.setattr(transport, "TIMEOUT_S", 600.0)
    made: list[Hostile] = []

    def make(pieces: Callable[[], Iterator[bytes]], **options: Any) -> Hostile:
        made.append(Hostile(pieces, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert wait_until(lambda: not senders())


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tessera-otlp"]


def exported(server: Hostile, scheme: str = "http", give_up_s: float = 0.3) -> OtlpExporter:
    """An exporter whose items were all given up or sent by itself, long before a request's ten minutes are over."""
    exporter = profile.otlp(f"{scheme}://127.0.0.1:{server.port}", give_up_s=give_up_s)
    exporter.export(kernels(5))
    assert wait_until(lambda: exporter.sent + exporter.dropped.total() == ITEMS)
    assert wait_until(lambda: not senders())
    return exporter


def once(*pieces: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(pieces)


def then_for_ever(start: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([start], itertools.repeat(piece))


TRICKLES = {
    "state": then_for_ever(b"", b"H"),
    "head": then_for_ever(OK, b"x"),
    "headers": then_for_ever(OK, b"a: b\r\n"),
    "continue": then_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": then_for_ever(OK + b"Content-Length: 1000000\r\n\r\n", b"\0"),
    "body without length": then_for_ever(OK + b"\r\n", b"\0"),
    "chunk": then_for_ever(CHUNKED + b"ffff\r\n", b"\0"),
    "chunks": then_for_ever(CHUNKED, b"1\r\nx\r\n"),
    "trailers": then_for_ever(CHUNKED + b"0\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize("kind", TRICKLES)
def test_a_byte_at_a_time_does_not_outlive_the_deadline(serving: Callable[..., Hostile], kind: str) -> None:
    exporter = exported(serving(TRICKLES[kind], pause_s=SLOW_S))
    assert exporter.sent == 0
    assert exporter.dropped.total() == ITEMS


@pytest.mark.parametrize("scheme", ["http", "grpc", "https"])
def test_silence_does_not_outlive_the_deadline(serving: Callable[..., Hostile], scheme: str) -> None:
    exporter = exported(serving(then_for_ever(b"", b""), pause_s=SLOW_S), scheme)
    assert exporter.dropped.total() == ITEMS


def test_a_tls_handshake_of_a_byte_at_a_time_does_not_outlive_the_deadline(serving: Callable[..., Hostile]) -> None:
    record = b"\x16\x03\x03\x40\x00"  # the head of a record of 16 KiB
    exporter = exported(serving(then_for_ever(record, b"\2"), pause_s=SLOW_S), "https")
    assert exporter.dropped.total() == ITEMS


def test_a_collector_that_does_not_read_does_not_outlive_the_deadline(
    serving: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "SPANS", 10**6)
    server = serving(then_for_ever(b"", b""), pause_s=SLOW_S, reads=False)
    exporter = profile.otlp(f"http://127.0.0.1:{server.port}", give_up_s=0.3)
    trace = kernels(60_000)  # more than the buffers of two sockets hold
    exporter.export(trace)
    assert wait_until(lambda: exporter.dropped.total() == encoding.count(trace))


FLOODS = {
    "state": then_for_ever(b"", MEGABYTE),
    "headers": then_for_ever(OK, b"a: b\r\n" * 10_000),
    "continue": then_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "body": then_for_ever(OK + b"Content-Length: 1500000000000\r\n\r\n", MEGABYTE),
    "body without length": then_for_ever(OK + b"\r\n", MEGABYTE),
    "chunk": then_for_ever(CHUNKED + b"ffffffffffffffffffff\r\n", MEGABYTE),
    "chunk of size -1": then_for_ever(CHUNKED + b"-1\r\n", MEGABYTE),
    "trailers": then_for_ever(CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_of_an_endless_answer_a_mebibyte_is_read_and_no_more(serving: Callable[..., Hostile], kind: str) -> None:
    server = serving(FLOODS[kind])
    exporter = exported(server, give_up_s=0.2)
    assert exporter.sent == 0
    assert exporter.dropped.total() == ITEMS
    assert server.given < server.asked * 16 * 2**20  # the rest stays in the sockets' buffers


def test_an_endless_answer_is_not_asked_for_again(serving: Callable[..., Hostile]) -> None:
    server = serving(FLOODS["body without length"])
    exporter = exported(server, give_up_s=60.0)
    assert all("more than 1048576 bytes" in reason for reason in exporter.dropped)
    assert server.asked == 3  # of spans, sums and gauges


def test_an_endless_answer_by_grpc_is_counted(serving: Callable[..., Hostile]) -> None:
    exporter = exported(serving(FLOODS["state"]), "grpc")
    assert exporter.dropped.total() == ITEMS


@pytest.mark.parametrize("length", [1 << 10, 1 << 21])
def test_of_an_answer_by_grpc_a_mebibyte_is_taken_and_no_more(length: int) -> None:
    collector = GrpcCollector()
    collector.message = "x" * length
    exporter = profile.otlp(collector.endpoint, give_up_s=60.0 if length < 1 << 20 else 1.0)
    exporter.export(kernels(5))
    complete = exporter.flush(60.0)
    collector.stop()
    assert exporter.sent + exporter.dropped.total() == ITEMS
    assert complete == (length < 1 << 20)
    assert complete or exporter.dropped["the collector answered RESOURCE_EXHAUSTED"] == 6  # the spans


BROKEN = {
    "nothing": once(),
    "half a state": once(b"HTTP/1.1 2"),
    "half a head": once(OK + b"Content-Le"),
    "a head without end": once(OK),
    "half a body": once(OK + b"Content-Length: 100\r\n\r\n"),
    "half a chunk": once(CHUNKED + b"64\r\n"),
    "no size of a chunk": once(CHUNKED + b"zz\r\n"),
    "a negative chunk": once(CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk of a negative size that no integer holds": once(CHUNKED + b"-" + b"f" * 40 + b"\r\n0\r\n\r\n"),
    "another protocol": once(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "bytes": once(bytes(range(256)) * 8),
    "a state that is none": once(b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n"),
    "a page": once(OK + b"Content-Length: 6\r\n\r\n<html>"),
    "a switch of protocols": once(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
    "a redirect": once(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_answer_is_counted_as_lost(serving: Callable[..., Hostile], kind: str) -> None:
    exporter = exported(serving(BROKEN[kind]))
    assert exporter.sent == 0
    assert exporter.dropped.total() == ITEMS
    assert "an error ended their delivery" not in exporter.dropped


@pytest.mark.parametrize("start", ["HTTP/1.1 400 ", "HTTP/1.1 302 ", "SSH-2.0 "])
def test_escape_sequences_do_not_reach_the_terminal(
    serving: Callable[..., Hostile], start: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = f"{start}\x1b]0;owned\x07\x1b[2J\x9b31m\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    exporter = exported(serving(once(answer)))
    assert exporter.dropped.total() == ITEMS
    assert all(reason.isprintable() for reason in exporter.dropped)
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.parametrize(
    "told", ["9" * 400, "99999999999", "-5", "0", "nan", "inf", "soon", "1e400", "Wed, 21 Oct 2099 07:28:00 GMT"]
)
def test_what_retry_after_says_does_not_outlive_the_deadline(serving: Callable[..., Hostile], told: str) -> None:
    answer = f"HTTP/1.1 503 Later\r\nRetry-After: {told}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
    server = serving(once(answer))
    exporter = exported(server, give_up_s=0.6)
    assert exporter.dropped.total() == ITEMS
    assert "the collector answered 503" in exporter.dropped
    assert exporter.dropped.keys() <= {"the collector answered 503", *OUT_OF_TIME}
    assert server.asked < 20  # pauses are kept, also after "0"


@pytest.mark.parametrize("rejected", [-(2**63), -5, 10**6, 2**63 - 1])
def test_a_number_of_rejected_items_that_cannot_be_is_none(serving: Callable[..., Hostile], rejected: int) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = rejected
    body = response.SerializeToString()
    exporter = exported(serving(once(OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)), give_up_s=60.0)
    assert exporter.sent + exporter.dropped.total() == ITEMS
    assert exporter.sent == (ITEMS if rejected < 0 else 0)


def test_what_is_on_its_way_when_a_flush_ends_is_counted(serving: Callable[..., Hostile]) -> None:
    server = serving(then_for_ever(b"", b""), pause_s=SLOW_S)
    exporter = profile.otlp(f"http://127.0.0.1:{server.port}", give_up_s=3.0)
    for _ in range(3):
        exporter.export(kernels(5))
    assert wait_until(lambda: server.asked > 0)
    assert not exporter.flush(0.1)
    assert exporter.dropped == {"there was no time left": 3 * ITEMS}
    server.close()
    assert wait_until(lambda: not senders())
    assert exporter.sent == 0
    assert exporter.dropped.total() == 3 * ITEMS


def test_reasons_do_not_grow_with_what_a_collector_makes_up(serving: Callable[..., Hostile]) -> None:
    numbers = itertools.count()
    answers = (
        f"HTTP/1.1 400 {number}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode() for number in numbers
    )
    server = serving(lambda: iter([next(answers)]))
    exporter = profile.otlp(f"http://127.0.0.1:{server.port}", give_up_s=1.0, waiting_profiles=100)
    for _ in range(60):
        exporter.export(kernels(1))
    assert not exporter.flush(60.0)
    assert exporter.dropped.total() == 60 * encoding.count(kernels(1))
    assert len(exporter.dropped) == 101
    assert exporter.dropped["other reasons"] > 0


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://[::1", "http://host/a path", "http://host/\u20ac", "http://", "ftp://host", "http://host/\x1b["),
        *("http://a host:4318", "grpc://host\x1b[:4317", "http://host\x00:4318", 4318, None),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_at_once(endpoint: Any) -> None:
    with pytest.raises(ArgumentError, match="is no OTLP endpoint") as error:
        profile.otlp(endpoint)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("name", ["a!b", "token-bin", "TOKEN-BIN"])
def test_a_header_that_grpc_cannot_send_is_refused_at_once(name: str) -> None:
    with pytest.raises(ArgumentError, match="header"):
        profile.otlp("grpc://localhost:4317", headers={name: "x"})


@pytest.mark.parametrize("give_up_s", [-1.0, float("nan"), float("inf"), None, "60"])
def test_a_time_that_cannot_be_is_refused_at_once(give_up_s: Any) -> None:
    with pytest.raises(ArgumentError, match="give_up_s"):
        profile.otlp("http://localhost:4318", give_up_s=give_up_s)


@pytest.mark.parametrize("option", [{"waiting_profiles": None}, {"waiting_profiles": -1}, {"headers": [("a", "b")]}])
def test_other_options_that_cannot_be_are_refused_at_once(option: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="is no"):
        profile.otlp("http://localhost:4318", **option)
