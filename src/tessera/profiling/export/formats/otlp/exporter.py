"""The exporter of `profile.otlp(endpoint)`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import cast

from tessera.errors import ArgumentError
from tessera.profiling.export.formats.otlp import encoding, transport
from tessera.profiling.export.formats.otlp.delivery import Batch, Delivery, PendingBatches
from tessera.profiling.trace.table import Trace


class OtlpExporter:
    """Sends traces to a collector from a thread of its own; `export` never waits for it.

    `sent` and `dropped` count spans and points of metrics: each is in one of them when it is no longer waiting.
    The thread and its connection last while something is waiting.
    """

    needs_kernels = True

    def __init__(
        self,
        endpoint: str,
        service: str = "tessera",
        headers: Mapping[str, str] | None = None,
        give_up_s: float = 60.0,
        waiting_profiles: int = 16,
    ) -> None:
        """Raises ArgumentError for an endpoint, a header, a time or a count that is none, and ProfileError without the
        extra `otlp`.
        """
        count, time_s = cast(object, waiting_profiles), cast(object, give_up_s)
        if type(count) is not int or count < 0:
            raise ArgumentError(f"waiting_profiles={waiting_profiles!r} is no count")
        if not isinstance(time_s, int | float) or not (math.isfinite(time_s) and time_s >= 0):
            raise ArgumentError(f"give_up_s={give_up_s!r} is no time", hints=["give a number of seconds"])
        self.endpoint = endpoint
        self._service = service
        self._delivery = Delivery(
            transport.to(endpoint, headers or {}), give_up_s=give_up_s, waiting_jobs=waiting_profiles
        )

    @property
    def sent(self) -> int:
        """Spans and points that the collector took."""
        return self._delivery.sent

    @property
    def dropped(self) -> Counter[str]:
        """Spans and points that were lost, by reason."""
        return Counter(self._delivery.dropped)

    def export(self, trace: Trace) -> str:
        """Enqueues the trace and gives the endpoint."""

        def batches() -> itertools.chain[Batch]:
            return itertools.chain(encoding.spans(trace, self._service), encoding.metrics(trace, self._service))

        self._delivery.submit(PendingBatches(encoding.count(trace), batches))
        return self.endpoint

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Waits until everything was sent, at most `timeout_s`, then drops what is left; whether nothing was dropped
        meanwhile.
        """
        return self._delivery.flush(timeout_s)
