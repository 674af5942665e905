"""Traces as OTLP requests.

What many spans share (name, attributes) is encoded once by `opentelemetry-proto`; a span is that, followed by its own
numbers: a protobuf message may be concatenated of parts. It costs a microsecond or two instead of twenty.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import polars

from tessera.profiling.export.chrome_facts import COUNTERS, FACTS, SLICES
from tessera.profiling.export.formats.otlp.delivery import Batch
from tessera.profiling.trace.grouping import by_lane, numbered
from tessera.profiling.trace.table import Trace

SPANS: Final = 4096
"""Of one request: about half a megabyte; a collector takes 4 MiB."""

_SPANS: Final = (*SLICES, "mark")
"""Kinds that become spans. A mark, which has no duration, is one without length: an event would have to be in the span
around it, which is encoded when it begins.
"""

_CONTAINERS: Final = ("region", "operator")
_ID: Final = b"\x12\x08"  # field 2, eight bytes
_PARENT: Final = b"\x22\x08"  # field 4
_TIMES: Final = struct.Struct("<BQBQ")  # fields 7 and 8, fixed64
_START, _END = 7 << 3 | 1, 8 << 3 | 1
_DOUBLE: Final = struct.Struct("<d")


def spans(trace: Trace, service: str) -> Iterator[Batch]:
    """The slices and marks of a trace as spans of one OpenTelemetry trace: kernels inside the regions around them."""
    from opentelemetry.proto.trace.v1 import trace_pb2

    events = trace.events.filter(polars.col("kind").is_in(_SPANS)).collect()
    zero = int(trace.metadata.get("start_unix_ns") or 0)
    lanes, _ = by_lane(events)
    numbers, kinds = numbered(events, ("kind", "device", "stream_name", *FACTS))
    trace_id = os.urandom(16)
    shared = [
        trace_pb2.Span(
            trace_id=trace_id,
            name=row["operator"] or row["kernel_name"] or row["kind"],
            kind=trace_pb2.Span.SPAN_KIND_INTERNAL,
            attributes=_attributes(row),
        ).SerializeToString()
        for row in kinds.iter_rows(named=True)
    ]
    contains = kinds["kind"].is_in(_CONTAINERS).to_list()
    measured = [name for name in COUNTERS if events[name].null_count() < len(events)]
    values = events.select(measured).iter_rows() if measured else itertools.repeat(())
    keys = [_attribute_head(f"tessera.{name}") for name in measured]
    head = _resource(trace, service)
    opened: dict[int, list[tuple[int, bytes]]] = {}
    own = struct.Struct("<Q")
    first = int.from_bytes(os.urandom(7), "little")  # never zero, and never the same twice
    batch: list[bytes] = []
    rows = zip(
        events["start_ns"], events["dur_ns"].fill_null(0), lanes.tolist(), numbers.tolist(), values, strict=False
    )
    for index, (start, duration, lane, number, counters) in enumerate(rows, 1):
        end = start + duration
        identity = own.pack(first + index)
        stack = opened.setdefault(lane, [])
        while stack and stack[-1][0] < end:
            stack.pop()
        parts = [shared[number], _ID, identity, _TIMES.pack(_START, zero + start, _END, zero + end)]
        if stack:
            parts += (_PARENT, stack[-1][1])
        if contains[number]:
            stack.append((end, identity))
        for key, value in zip(keys, counters, strict=True):
            if value is not None and math.isfinite(value):
                parts += (key, _DOUBLE.pack(value))
        batch.append(b"".join(parts))
        if len(batch) == SPANS:
            yield _request("traces", head, batch)
            batch = []
    if batch:
        yield _request("traces", head, batch)


def metrics(trace: Trace, service: str) -> Iterator[Batch]:
    """Counts and times of a trace as sums, and its counters and samples as gauges."""
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

    zero = int(trace.metadata.get("start_unix_ns") or 0)
    last = zero + int(trace.metadata.get("duration_ns") or 0)
    head = _resource(trace, service)

    def total(name: str, unit: str, points: Iterable[tuple[dict[str, Any], int | float]]) -> Any:
        made = []
        for told, value in points:
            point = pb.NumberDataPoint(start_time_unix_nano=zero, time_unix_nano=last, attributes=_attributes(told))
            setattr(point, "as_int" if isinstance(value, int) else "as_double", value)
            made.append(point)
        delta = pb.AGGREGATION_TEMPORALITY_DELTA
        added = pb.Sum(data_points=made, aggregation_temporality=delta, is_monotonic=True)
        return pb.Metric(name=name, unit=unit, sum=added)

    rows = [
        ({"operator": row["operator"], "dtype": row["dtype"]}, row) for row in _operators(trace).iter_rows(named=True)
    ]
    reasons = trace.metadata.get("dropped_reasons", {})
    sums = [
        total("tessera.kernels.launched", "{kernel}", [({}, int(trace.metadata.get("launched", 0)))]),
        total("tessera.kernels.dropped", "{kernel}", [({"reason": why}, int(count)) for why, count in reasons.items()]),
        total("tessera.operator.calls", "{call}", [(told, row["calls"]) for told, row in rows]),
        total("tessera.operator.time", "s", [(told, row["seconds"]) for told, row in rows]),
    ]
    count = sum(len(metric.sum.data_points) for metric in sums)
    yield _request("metrics", head, [metric.SerializeToString() for metric in sums if metric.sum.data_points], count)
    read = _values(trace).sort("kernel_name", "device", "unit", "start_ns").collect()
    for (name, device, unit), series in read.group_by(["kernel_name", "device", "unit"], maintain_order=True):
        for part in series.iter_slices(SPANS):
            points = [
                pb.NumberDataPoint(
                    time_unix_nano=zero + start, as_double=value, attributes=_attributes({"device": device})
                )
                for start, value in part.select("start_ns", "value").iter_rows()
            ]
            metric = pb.Metric(name=str(name), unit=str(unit or ""), gauge=pb.Gauge(data_points=points))
            yield _request("metrics", head, [metric.SerializeToString()], len(points))


def count(trace: Trace) -> int:
    """Spans and points that a trace becomes."""
    slices = trace.events.filter(polars.col("kind").is_in(_SPANS)).select(polars.len())
    values = _values(trace).select(polars.len())
    found, read = (each.item() for each in polars.collect_all([slices, values]))
    return int(found + read + 2 * len(_operators(trace)) + 1 + len(trace.metadata.get("dropped_reasons", {})))


def _operators(trace: Trace) -> polars.DataFrame:
    kernels = trace.events.filter(polars.col("kind") == "kernel")
    calls = kernels.group_by("operator", "dtype").agg(calls=polars.len(), seconds=polars.col("dur_ns").sum() / 1e9)
    return calls.sort(polars.col("operator", "dtype").cast(polars.String)).collect()


def _values(trace: Trace) -> polars.LazyFrame:
    read = polars.col("kind").is_in(("counter", "sample")) & polars.col("value").is_finite()
    texts = polars.col("kernel_name", "device", "unit").cast(polars.String)
    return trace.events.filter(read).select(texts, "start_ns", "value")


def _attributes(told: Mapping[str, Any]) -> list[Any]:
    """Attributes of what is known, under `tessera.`."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    made = []
    for name, value in told.items():
        if value is None or name == "row":
            continue
        kind = "string_value" if isinstance(value, str) else "int_value" if isinstance(value, int) else "double_value"
        made.append(KeyValue(key=f"tessera.{name}", value=AnyValue(**{kind: value})))
    return made


def _attribute_head(key: str) -> bytes:
    """An attribute of a span up to its number, a double: field 9 of the span."""
    text = key.encode()
    pair = b"\x0a" + bytes([len(text)]) + text + b"\x12\x09\x21"
    return b"\x4a" + bytes([len(pair) + _DOUBLE.size]) + pair


def _resource(trace: Trace, service: str) -> bytes:
    """Who made the spans: field 1 of their message."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    (rank, about), *_ = trace.metadata.get("ranks", {"0": {}}).items()
    told = {
        "service.name": service,
        "host.name": about.get("host"),
        "process.pid": about.get("pid"),
        "tessera.rank": rank,
    }
    texts = [
        KeyValue(key=name, value=AnyValue(string_value=str(value))) for name, value in told.items() if value is not None
    ]
    return _field(1, Resource(attributes=texts).SerializeToString())


def _request(signal: str, resource: bytes, items: Iterable[bytes], count: int | None = None) -> Batch:
    """A request of items that are encoded. Requests for spans and for metrics number their fields alike:
    resource_spans 1 (resource 1, scope_spans 2 (scope 1, spans 2)).
    """
    listed = list(items)
    scope = _field(1, _field(1, b"tessera"))  # its name
    scoped = scope + b"".join(_field(2, item) for item in listed)
    return Batch(signal, len(listed) if count is None else count, _field(1, resource + _field(2, scoped)))


def _field(number: int, payload: bytes) -> bytes:
    """A field of variable length."""
    size, length = len(payload), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + payload
