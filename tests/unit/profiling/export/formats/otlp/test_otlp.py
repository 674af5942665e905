"""Spans and metrics over OTLP, at collectors that fail, stop and come back."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tessera import profile
from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.export.formats.otlp import delivery, encoding
from tessera.profiling.export.formats.otlp.exporter import OtlpExporter
from tessera.profiling.trace.table import Trace, frame
from tessera.system.distribution import installing
from tests.hostile.users import as_user, needs_root
from tests.unit.profiling.export.formats.otlp.collectors import GrpcCollector, HttpCollector
from tests.unit.profiling.support import run, two_step_plan

ZERO = 1_790_000_000_000_000_000


def kernels(count: int) -> Trace:
    """One region around kernels, and three values of a counter."""
    numbers = numpy.arange(count)
    parts: dict[str, Any] = {
        "kind": ["region", *["kernel"] * count, *["counter"] * 3],
        "kernel_name": ["step", *[f"kernel {number % 5}" for number in numbers], *["loss"] * 3],
        "operator": [None, *["matmul"] * count, *[None] * 3],
        "start_ns": [0, *(10 + 100 * numbers), 1, 2, 3],
        "dur_ns": [100 * count + 50, *[60] * count, 0, 0, 0],
        "thread_id": [1] * (count + 4),
        "flops": [None, *[2.0e9] * count, *[None] * 3],
        "sm_occupancy": [None, *(0.25 + numbers % 2 / 4), *[None] * 3],
        "value": [*[None] * (count + 1), 3.0, 2.0, 1.5],
    }
    about = {
        "start_unix_ns": ZERO,
        "duration_ns": 100 * count,
        "launched": count + 2,
        "dropped_reasons": {"overwritten": 2},
        "ranks": {"3": {"host": "node7", "pid": 4711}},
    }
    return Trace(frame(parts).lazy().sort("start_ns", maintain_order=True), about, {})


def told(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture(params=[HttpCollector, GrpcCollector], ids=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[HttpCollector | GrpcCollector]:
    made = request.param()
    yield made
    made.stop()


@pytest.fixture
def http() -> Iterator[HttpCollector]:
    made = HttpCollector()
    yield made
    made.stop()


def test_kernels_are_spans_within_the_span_of_their_region(collector: HttpCollector | GrpcCollector) -> None:
    exporter = profile.otlp(collector.endpoint, service="trainer", headers={"authorization": "Bearer x"})
    exporter.export(kernels(20))
    assert exporter.flush()
    spans = {span.span_id: span for span in collector.received.spans()}
    assert len(spans) == 21
    assert len({span.trace_id for span in spans.values()}) == 1
    (region,) = [span for span in spans.values() if span.name == "step"]
    inner = [span for span in spans.values() if span.name == "matmul"]
    assert {span.parent_span_id for span in inner} == {region.span_id}
    assert not region.parent_span_id
    assert (region.start_time_unix_nano, region.end_time_unix_nano) == (ZERO, ZERO + 2050)
    second = sorted(inner, key=lambda span: span.start_time_unix_nano)[1]
    assert (second.start_time_unix_nano, second.end_time_unix_nano) == (ZERO + 110, ZERO + 170)
    assert told(second.attributes) == {
        "tessera.kind": "kernel",
        "tessera.operator": "matmul",
        "tessera.kernel_name": "kernel 1",
        "tessera.flops": 2e9,
        "tessera.sm_occupancy": 0.5,
    }
    resource = told(collector.received.traces[0].resource_spans[0].resource.attributes)
    assert resource == {"service.name": "trainer", "host.name": "node7", "process.pid": "4711", "tessera.rank": "3"}
    headers = {name.lower(): value for name, value in collector.received.headers.items()}
    assert headers["authorization"] == "Bearer x"


def test_kernels_of_a_session_are_in_the_spans_of_their_regions(collector: HttpCollector | GrpcCollector) -> None:
    exporter = profile.otlp(collector.endpoint)
    with profile.session(exporters=[exporter]), profile.region("step"):
        run(two_step_plan())
    assert exporter.flush()
    spans = collector.received.spans()
    (region,) = [span for span in spans if span.name == "step"]
    assert [span.parent_span_id for span in spans if span is not region] == [region.span_id] * 2


def test_metrics_hold_counts_times_and_values(collector: HttpCollector | GrpcCollector) -> None:
    exporter = profile.otlp(collector.endpoint)
    exporter.export(kernels(20))
    assert exporter.flush()
    points = collector.received.points()
    assert [point.as_int for point in points["tessera.kernels.launched"]] == [22]
    assert [point.as_int for point in points["tessera.kernels.dropped"]] == [2]
    assert [point.as_int for point in points["tessera.operator.calls"]] == [20]
    assert points["tessera.operator.time"][0].as_double == pytest.approx(20 * 60e-9)
    assert [point.as_double for point in points["loss"]] == [3.0, 2.0, 1.5]
    assert points["loss"][1].time_unix_nano == ZERO + 2
    assert exporter.sent == collector.received.items() == encoding.count(kernels(20))


def test_marks_are_spans_without_length_in_the_span_of_their_region(collector: HttpCollector | GrpcCollector) -> None:
    parts: dict[str, Any] = {
        "kind": ["region", "mark", "mark"],
        "kernel_name": ["step", "inside", "after"],
        "start_ns": [0, 40, 200],
        "dur_ns": [100, None, None],
        "thread_id": [1, 1, 1],
    }
    trace = Trace(frame(parts).lazy(), {"start_unix_ns": ZERO}, {})
    exporter = profile.otlp(collector.endpoint)
    exporter.export(trace)
    assert exporter.flush()
    spans = {span.name: span for span in collector.received.spans()}
    assert sorted(spans) == ["after", "inside", "step"]
    assert spans["inside"].start_time_unix_nano == spans["inside"].end_time_unix_nano == ZERO + 40
    assert spans["inside"].parent_span_id == spans["step"].span_id
    assert not spans["after"].parent_span_id
    assert told(spans["after"].attributes)["tessera.kind"] == "mark"
    assert exporter.sent == collector.received.items() == encoding.count(trace)


def test_the_thread_ends_when_nothing_is_left_and_another_begins_with_the_next(
    collector: HttpCollector | GrpcCollector,
) -> None:
    exporter = profile.otlp(collector.endpoint)
    for times in (1, 2):
        exporter.export(kernels(3))
        assert exporter.flush()
        assert not [thread for thread in threading.enumerate() if thread.name == "tessera-otlp"]
        assert exporter.sent == times * encoding.count(kernels(3))


def test_where_no_thread_can_be_started_the_caller_delivers(
    http: HttpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    exporter = profile.otlp(http.endpoint)
    with monkeypatch.context() as patch:
        # Only of ours: the collector answers in threads of its own.
        begin = threading.Thread.start
        patch.setattr(threading.Thread, "start", lambda each: (refused if "otlp" in each.name else begin)(each))
        exporter.export(kernels(3))
    assert exporter.sent == encoding.count(kernels(3))
    assert exporter.flush()


@needs_root
def test_a_fork_leaves_what_waits_to_its_parent(http: HttpCollector) -> None:
    http.stop()
    exporter = profile.otlp(http.endpoint, give_up_s=20.0)
    exporter.export(kernels(3))
    assert as_user(os.getuid(), lambda: [exporter.flush(), exporter.sent]) == [True, 0]
    http.restart()
    assert exporter.flush()
    assert http.received.items() == exporter.sent == encoding.count(kernels(3))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl, which makes a certificate")
def test_https_trusts_who_has_a_certificate_and_nobody_else(
    http: HttpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    http.secure(key, certificate)
    endpoint = f"https://localhost:{http.port}"
    stranger = profile.otlp(endpoint, give_up_s=0.2)
    stranger.export(kernels(3))
    assert not stranger.flush()
    assert stranger.sent == http.received.items() == 0
    assert stranger.dropped.total() == encoding.count(kernels(3))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    exporter = profile.otlp(endpoint)
    exporter.export(kernels(20_000))  # more than a record of TLS
    assert exporter.flush()
    assert exporter.sent == http.received.items() == encoding.count(kernels(20_000))


def test_a_session_is_exported_at_its_end(collector: HttpCollector | GrpcCollector) -> None:
    exporter = profile.otlp(collector.endpoint)
    before = time.time_ns()
    with profile.session(exporters=[exporter]), profile.region("forward"):
        run(two_step_plan(), 3)
    assert exporter.flush()
    spans = collector.received.spans()
    assert sorted(span.name for span in spans) == ["add"] * 3 + ["double"] * 3 + ["forward"]
    assert all(
        before - 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano < time.time_ns() + 10**9 for span in spans
    )


def test_a_collector_that_is_killed_and_restarted_midway_loses_nothing(
    collector: HttpCollector | GrpcCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "SPANS", 100)
    exporter = profile.otlp(collector.endpoint)
    exporter.export(kernels(150))
    assert exporter.flush()
    collector.stop()
    exporter.export(kernels(2000))  # the program is not held up: nobody takes it now
    assert exporter.sent == encoding.count(kernels(150))
    collector.restart()
    assert exporter.flush(60.0)
    assert exporter.dropped.total() == 0
    assert exporter.sent == collector.received.items() == encoding.count(kernels(150)) + encoding.count(kernels(2000))
    assert len({span.span_id for span in collector.received.spans()}) == 150 + 2000 + 2


def test_what_a_collector_that_stays_away_does_not_get_is_counted(
    collector: HttpCollector | GrpcCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "SPANS", 100)
    exporter = profile.otlp(collector.endpoint, give_up_s=0.3)
    collector.stop()
    exporter.export(kernels(50))
    assert not exporter.flush()
    assert exporter.sent == 0
    assert exporter.dropped.total() == encoding.count(kernels(50))
    collector.restart()


def test_answers_that_say_later_are_followed(http: HttpCollector) -> None:
    http.received.answers = [503, 0, 429]
    exporter = profile.otlp(http.endpoint)
    exporter.export(kernels(10))
    assert wait_until(lambda: exporter.sent == encoding.count(kernels(10)))
    assert http.requests["/v1/traces"] == 4
    assert not exporter.dropped


def test_answers_that_say_never_are_counted_with_their_reason(http: HttpCollector) -> None:
    http.received.answers = [401]
    exporter = profile.otlp(http.endpoint)
    exporter.export(kernels(10))
    assert not exporter.flush()
    assert exporter.dropped == {"the collector answered 401 Unauthorized to /v1/traces": 11}
    assert exporter.sent == encoding.count(kernels(10)) - 11


def test_something_else_that_answers_is_told_from_a_collector(http: HttpCollector) -> None:
    http.received.garbage = True
    exporter = profile.otlp(http.endpoint)
    exporter.export(kernels(10))
    assert not exporter.flush()
    assert exporter.sent == 0
    assert exporter.dropped["what answers at /v1/traces is no collector"] == 11


def test_spans_that_the_collector_rejects_are_counted(http: HttpCollector) -> None:
    http.received.reject = 4
    exporter = profile.otlp(http.endpoint)
    exporter.export(kernels(10))
    assert not exporter.flush()
    assert exporter.dropped == {"rejected by the collector": 4}


def test_the_queue_is_bounded_and_says_what_it_refused(http: HttpCollector) -> None:
    http.stop()
    exporter = profile.otlp(http.endpoint, waiting_profiles=2)
    for _ in range(6):
        exporter.export(kernels(10))
    refused = exporter.dropped["more than 2 profiles were waiting"]
    assert refused in (3 * encoding.count(kernels(10)), 4 * encoding.count(kernels(10)))  # one may be on its way
    http.restart()
    exporter.flush(60.0)
    assert exporter.sent + exporter.dropped.total() == 6 * encoding.count(kernels(10))


def test_a_failure_of_ours_is_counted_and_the_next_profile_goes_on(http: HttpCollector) -> None:
    made = OtlpExporter(http.endpoint, "x", {}, 1.0, 4)

    def broken() -> Iterator[delivery.Batch]:
        return (delivery.Batch("traces", 0, bytes(number)) for number in (-1,))  # no bytes have a negative length

    caught: list[Any] = []
    before, threading.excepthook = threading.excepthook, caught.append
    try:
        made._delivery.submit(delivery.PendingBatches(7, broken))
        assert wait_until(lambda: bool(caught))
    finally:
        threading.excepthook = before
    assert made.dropped == {"an error ended their delivery": 7}
    made.export(kernels(3))
    assert made.flush()
    assert made.sent == encoding.count(kernels(3))


def test_what_is_no_endpoint_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is no OTLP endpoint"):
        profile.otlp("localhost:4317")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.proto.collector.trace.v1", None)
    with pytest.raises(ProfileError, match="needs opentelemetry-proto") as error:
        profile.otlp("http://localhost:4318")
    assert installing("otlp") in str(error.value)


def wait_until(happened: Any, timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.parametrize("port", ["99999", "abc", "0"])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_port_that_cannot_be_is_refused_at_once(scheme: str, port: str) -> None:
    with pytest.raises(ArgumentError, match="port"):
        profile.otlp(f"{scheme}://localhost:{port}")


@pytest.mark.parametrize("headers", [{"a": "b\r\nc: d"}, {"a\r\n": "b"}, {"a": "\u20ac"}, {"a": None}, {"": "b"}])
def test_a_header_that_cannot_be_sent_is_refused_at_once(headers: Any) -> None:
    with pytest.raises(ArgumentError, match="header"):
        profile.otlp("http://localhost:4318", headers=headers)
