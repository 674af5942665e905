"""A hundred thousand spans to collectors that are killed and restarted midway."""

from __future__ import annotations

import time

import pytest

from tessera import profile
from tests.unit.profiling.export.formats.otlp.collectors import GrpcCollector, HttpCollector
from tests.unit.profiling.export.formats.otlp.test_otlp import kernels, wait_until

SPANS = 100_000


@pytest.mark.parametrize("make", [HttpCollector, GrpcCollector])
def test_every_span_arrives_or_is_counted(make: type[HttpCollector] | type[GrpcCollector]) -> None:
    collector = make()
    exporter = profile.otlp(collector.endpoint)
    exporter.export(kernels(SPANS))
    assert wait_until(lambda: exporter.sent > 0)
    collector.stop()
    before = exporter.sent
    time.sleep(0.2)
    collector.restart()
    assert exporter.flush(60.0)
    assert before < SPANS  # it was stopped midway
    assert not exporter.dropped
    assert len({span.span_id for span in collector.received.spans()}) == SPANS + 1
    collector.stop()
