"""What was sampled and nobody has taken yet: instants and values of one sampler, growth as rates."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from tessera.profiling.counters.interfaces import Polled, Sampler


class Series:
    """What one sampler has read and nobody has taken: instants, and values row by row. The sampling thread appends."""

    def __init__(self, source: str, sampler: Sampler, interval_ns: int = 0) -> None:
        self.source = source
        self.fields = tuple(sampler.fields)
        self.spacing_ns = int(sampler.min_interval_ms * 1e6)
        self.grows = any(field.cumulative for field in self.fields)
        self.polled: Sequence[Polled] = getattr(sampler, "polled", ())
        self.due_ns = 0
        self._apart_ns = max(interval_ns, self.spacing_ns) // 2
        self.ended: str | None = None
        self._sampler = sampler
        self._times = array("q")
        self._values = array("d")
        self._tail: tuple[NDArray[numpy.int64], NDArray[numpy.float64]] | None = None

    def read(self, now_ns: int) -> None:
        """Reads once; after a failure, never again."""
        try:
            values = self._sampler.read()
        except OSError as error:
            self.close(str(error) or type(error).__name__)
            return
        self._times.append(time.monotonic_ns())
        self._values.extend(values)
        self.due_ns = now_ns + self.spacing_ns

    def extend(self, times: NDArray[numpy.int64], values: NDArray[numpy.float64]) -> None:
        """Adds what native code has read: instants, and a column of values for each field."""
        self._times.frombytes(times.tobytes())
        self._values.frombytes(values.tobytes())

    def close(self, reason: str) -> None:
        """Ends it. What was read stays."""
        if self.ended is None:
            self.ended = reason
            self._sampler.close()

    def take(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.float64]]:
        """Instants, and a column of samples for each field, in its unit; NaN where there is none. Cumulative fields
        have none at the first instant of all.
        """
        times, flat = numpy.frombuffer(self._times, numpy.int64), numpy.frombuffer(self._values, numpy.float64)
        # A fork may have caught the thread between an instant and its values.
        times = times[: len(flat) // len(self.fields)]
        values = flat.reshape(-1, len(self.fields))[: len(times)]
        self._times, self._values = array("q"), array("d")
        if self.grows:
            kept = _apart(times, None if self._tail is None else int(self._tail[0][0]), self._apart_ns)
            times, values = times[kept], values[kept]
        if not len(times):
            return times, values
        before = self._tail
        self._tail = times[-1:], values[-1:]
        cumulative = numpy.array([each.cumulative for each in self.fields])
        samples = values * numpy.array([each.scale for each in self.fields])
        if cumulative.any():
            scales = numpy.array([each.scale for each in self.fields])[cumulative]
            samples[:, cumulative] = _rates(times, values[:, cumulative], before, cumulative) * scales
        shares = numpy.array([each.share for each in self.fields])
        if shares.any():
            samples[:, shares] = _shares(samples[:, shares]) * [each.scale for each in self.fields if each.share]
        return times, samples


def _shares(growth: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Each column's share of the growth of all of them; NaN where nothing grew."""
    whole = numpy.nansum(growth, axis=1, keepdims=True)
    found: NDArray[numpy.float64] = numpy.full_like(growth, numpy.nan)
    numpy.divide(growth, whole, out=found, where=whole > 0)
    return found


def _apart(times: NDArray[numpy.int64], before: int | None, least_ns: int) -> NDArray[numpy.int64]:
    """The places of readings that lie `least_ns` apart, the last ones where some lie nearer. Counts that the system
    brings up to date by its own clock's ticks have no rate over a fraction of a tick.
    """
    gaps = numpy.diff(times) if before is None else numpy.diff(times, prepend=before)
    if bool((gaps >= least_ns).all()):
        return numpy.arange(len(times))
    kept = [len(times) - 1]
    for place in range(len(times) - 2, -1, -1):
        if times[kept[-1]] - times[place] >= least_ns:
            kept.append(place)
    while kept and before is not None and times[kept[-1]] - before < least_ns:
        kept.pop()
    if before is None and len(kept) < 2:  # all of it is that short
        return numpy.array([0, len(times) - 1], numpy.int64)
    return numpy.array(kept[::-1], numpy.int64)


def _rates(
    times: NDArray[numpy.int64],
    values: NDArray[numpy.float64],
    before: tuple[NDArray[numpy.int64], NDArray[numpy.float64]] | None,
    columns: NDArray[numpy.bool_],
) -> NDArray[numpy.float64]:
    """Growth per second since the instant before; NaN where there was none, or a count began anew."""
    first_time = before[0] if before else times[:1]
    first_value = before[1][:, columns] if before else numpy.full((1, values.shape[1]), numpy.nan)
    seconds = numpy.maximum(numpy.diff(times, prepend=first_time), 1) / 1e9
    growth = numpy.diff(values, axis=0, prepend=first_value)
    return numpy.where(growth >= 0, growth, numpy.nan) / seconds[:, None]
