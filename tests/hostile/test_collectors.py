"""OpenTelemetry collectors that are slow, broken or hostile: a session ends in time, and what is lost is counted."""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tessera import profile
from tessera.profiling.otlp import delivery
from tests.unit.profiling.otlp.collectors import GrpcCollector, HttpCollector
from tests.unit.profiling.otlp.test_otlp import kernels, wait_until

GIVE_UP_S = 0.6
IN_TIME_S = 5.0
"""Far above `GIVE_UP_S`, far below what the collectors would take."""

Answer = Callable[[socket.socket], None]
"""What a collector does with a connection whose request it has read."""


class Raw:
    """A collector that says what a test has it say, byte by byte."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self.ends.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                self._answer(connection)
            except OSError:  # the client has gone
                return

    def close(self) -> None:
        self.ends.set()
        self._server.close()


@pytest.fixture
def collectors() -> Iterator[Callable[[Answer], Raw]]:
    made: list[Raw] = []

    def make(answer: Answer) -> Raw:
        made.append(Raw(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def drip(connection: socket.socket) -> None:
    """A byte at a time, for ever, each well before any time-out of a socket."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def drip_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        connection.sendall(b"X-%d: y\r\n" % number if number < 50 else b"z")
        time.sleep(0.05)


def say_nothing(connection: socket.socket) -> None:
    connection.recv(1)
    time.sleep(IN_TIME_S)


def go_on_for_ever(connection: socket.socket) -> None:
    for _ in range(10_000):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def pour(connection: socket.socket) -> None:
    """An answer without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"\0" * (1 << 16))


def saying(text: bytes) -> Answer:
    return lambda connection: connection.sendall(text)


SLOW = {"drip": drip, "drip_headers": drip_headers, "say_nothing": say_nothing, "go_on_for_ever": go_on_for_ever}
BROKEN = {
    "no answer": b"",
    "no HTTP": b"\x00\xff\x1b[31m garbage\r\n\r\n",
    "no status": b"HTTP/1.1 abc OK\r\n\r\n",
    "a huge status": b"HTTP/1.1 99999 OK\r\n\r\n",
    "an endless line": b"HTTP/1.1 200 " + b"x" * 100_000,
    "a length that lies": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "a negative length": b"HTTP/1.1 400 OK\r\nContent-Length: -5\r\n\r\nabc",
    "chunks that are none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "a redirect": b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "later, after years": b"HTTP/1.1 503 Later\r\nRetry-After: " + b"9" * 400 + b"\r\nContent-Length: 0\r\n\r\n",
    "later, before now": b"HTTP/1.1 503 Later\r\nRetry-After: -1\r\nContent-Length: 0\r\n\r\n",
    "later, in a word": b"HTTP/1.1 429 Later\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
}


def lost(endpoint: str) -> tuple[int, int, set[str], float]:
    """Of a profile that is sent there: (spans and points sent, dropped, why, seconds that it took)."""
    exporter = profile.otlp(endpoint, give_up_s=GIVE_UP_S)
    begun = time.monotonic()
    exporter.send(kernels(3))
    assert wait_until(lambda: exporter.sent + exporter.dropped.total() > 0, IN_TIME_S)
    taken_s = time.monotonic() - begun
    assert not exporter.flush(IN_TIME_S) or exporter.sent
    return exporter.sent, exporter.dropped.total(), set(exporter.dropped), taken_s


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW.keys())
def test_a_collector_that_is_slow_is_given_up_in_time(collectors: Callable[[Answer], Raw], answer: Answer) -> None:
    sent, dropped, _, taken_s = lost(collectors(answer).endpoint)
    assert not sent
    assert dropped
    assert taken_s < IN_TIME_S


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_is_broken_is_counted_and_said_in_print(
    collectors: Callable[[Answer], Raw], text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tessera.profile"):
        sent, dropped, reasons, _ = lost(collectors(saying(text)).endpoint)
    assert not sent
    assert dropped
    assert reasons
    assert all(reason.isprintable() for reason in reasons)
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_reason_phrase_cannot_write_to_the_terminal(collectors: Callable[[Answer], Raw]) -> None:
    text = b"HTTP/1.1 400 \x1b]0;owned\x07\x1b[2J\r\nContent-Length: 0\r\n\r\n"
    _, _, reasons, _ = lost(collectors(saying(text)).endpoint)
    assert reasons
    assert all(reason.isprintable() for reason in reasons)


def test_an_answer_without_end_is_not_kept(collectors: Callable[[Answer], Raw]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent, dropped, reasons, _ = lost(collectors(pour).endpoint)
    assert not sent
    assert dropped
    assert any("more than 1048576 bytes" in reason for reason in reasons)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_flushing_ends_what_is_under_way(collectors: Callable[[Answer], Raw]) -> None:
    exporter = profile.otlp(collectors(drip).endpoint, give_up_s=60)
    exporter.send(kernels(3))
    exporter.send(kernels(2))
    begun = time.monotonic()
    assert not exporter.flush(0.3)
    assert time.monotonic() - begun < IN_TIME_S
    assert not exporter.sent
    assert exporter.dropped.total()


@pytest.mark.parametrize("collector", [HttpCollector, GrpcCollector])
def test_the_thread_ends_and_another_one_sends_what_comes_later(
    collector: type[HttpCollector] | type[GrpcCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "IDLE_S", 0.05)
    listening = collector()
    try:
        exporter = profile.otlp(listening.endpoint)
        for _ in range(2):
            before = exporter.sent
            exporter.send(kernels(3))
            assert exporter.flush(IN_TIME_S)
            assert exporter.sent > before
            assert wait_until(lambda: "tessera-otlp" not in {each.name for each in threading.enumerate()})
        assert not exporter.dropped
    finally:
        listening.stop()


def test_all_that_was_given_is_in_sent_or_in_dropped(collectors: Callable[[Answer], Raw]) -> None:
    listening = HttpCollector()
    try:
        whole = profile.otlp(listening.endpoint)
        whole.send(kernels(5))
        assert whole.flush(IN_TIME_S)
    finally:
        listening.stop()
    refused = profile.otlp(collectors(saying(BROKEN["a redirect"])).endpoint, give_up_s=GIVE_UP_S)
    refused.send(kernels(5))
    refused.flush(IN_TIME_S)
    assert refused.sent == 0
    assert refused.dropped.total() == whole.sent
