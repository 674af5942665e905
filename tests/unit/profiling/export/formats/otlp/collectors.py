"""Collectors of real protocol code, in this process: HTTP and gRPC, which can be stopped and started again."""

from __future__ import annotations

import http.server
import ssl
import sys
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Received:
    """What came, as protobuf's own parser reads it."""

    def __init__(self) -> None:
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self.answers: list[int] = []
        """HTTP states to answer with before all is well again; 0 ends the connection without an answer."""
        self.reject = 0
        self.garbage = False
        self.headers: dict[str, str] = {}

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def points(self) -> dict[str, list[Any]]:
        """Data points by the name of their metric."""
        found: dict[str, list[Any]] = {}
        for request in self.metrics:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        points = metric.sum.data_points or metric.gauge.data_points
                        found.setdefault(metric.name, []).extend(points)
        return found

    def items(self) -> int:
        return len(self.spans()) + sum(map(len, self.points().values()))

    def take(self, path: str, body: bytes) -> bytes:
        if path == "/v1/traces":
            self.traces.append(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            response = trace_service_pb2.ExportTraceServiceResponse()
            response.partial_success.rejected_spans, self.reject = self.reject, 0
            return bytes(response.SerializeToString())
        assert path == "/v1/metrics"
        self.metrics.append(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
        return bytes(metrics_service_pb2.ExportMetricsServiceResponse().SerializeToString())


class HttpCollector:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self) -> None:
        self.received = Received()
        self.requests: Counter[str] = Counter()
        self.port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests[self.path] += 1
                collector.received.headers = dict(self.headers)
                assert self.headers["Content-Type"] == "application/x-protobuf"
                status = collector.received.answers.pop(0) if collector.received.answers else 200
                if not status:
                    self.close_connection = True
                    return
                answer = collector.received.take(self.path, body) if status == 200 else b""
                answer = b"<html>" if collector.received.garbage else answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exception(), OSError):  # a client that went away is no error of the test's
                    super().handle_error(request, client_address)

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def secure(self, key: Path, certificate: Path) -> None:
        """Speaks TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)

    def stop(self) -> None:
        """Refuses connections from now on; those that are open end with their next request."""
        self.received.answers = [0] * 3
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def restart(self) -> None:
        self.received.answers = []
        self.start()


class GrpcCollector:
    """OTLP over gRPC."""

    def __init__(self) -> None:
        self.received = Received()
        self.code: grpc.StatusCode | None = None
        self.message = ""
        """What answers about spans say."""
        self.port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        collector = self

        class Traces(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
                if collector.code is not None:
                    context.abort(collector.code, "as the test asked")
                collector.received.headers = dict(context.invocation_metadata())
                collector.received.traces.append(request)
                response = trace_service_pb2.ExportTraceServiceResponse()
                if collector.message:
                    response.partial_success.error_message = collector.message
                return response

        class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
                collector.received.metrics.append(request)
                return metrics_service_pb2.ExportMetricsServiceResponse()

        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), self._server)
        deadline = time.monotonic() + 60
        while True:  # the port of a server that was stopped may be busy for a moment
            try:
                self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def restart(self) -> None:
        self.start()
