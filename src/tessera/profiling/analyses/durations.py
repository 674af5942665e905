"""Durations of many events in little memory: histograms whose bins are 1/256 of a factor e wide (0.4 %).

A bin keeps the count and the sum of what fell into it, so a median is the mean of the bin that it lies in: exact where
all durations of the bin are equal, within 0.4 % else. A histogram is as large as the spread of durations, not as their
number, so traces of any length are read as a stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import col

from tessera.profiling.analyses import kernels
from tessera.profiling.trace.table import Trace

_TEXTS: Final = ("dtype", "shapes", "schedule", "schedule_source", "backend", "device")
_BINS_PER_E: Final = 256
_COARSE: Final = 512
"""Bins of each side where all pairs are looked at."""
_BIN: Final = (col("dur_ns").clip(1).log() * _BINS_PER_E).floor().cast(polars.Int32)

KEYS: Final = ("kernel", *_TEXTS, "flops", "bytes", "workers")
"""What tells one work of kernels from another; texts are strings."""


@dataclass(frozen=True)
class Histogram:
    """Durations in ascending bins: the counts and the mean of each, in nanoseconds."""

    counts: NDArray[numpy.int64]
    means_ns: NDArray[numpy.float64]

    @property
    def calls(self) -> int:
        """How many durations there are."""
        return int(self.counts.sum())

    def at_rank(self, rank: int) -> float:
        """The duration at a rank from 1 on, in nanoseconds."""
        place = int(numpy.searchsorted(self.counts.cumsum(), rank))
        return float(self.means_ns[place])

    def quantile_ns(self, share: float) -> float:
        """The duration that this share (0 to 1) of all is nearest to."""
        return self.at_rank(1 + round(share * (self.calls - 1)))

    @property
    def median_ns(self) -> float:
        """The median; of an even number of durations, the mean of the two in the middle."""
        calls = self.calls
        return (self.at_rank((calls + 1) // 2) + self.at_rank(calls // 2 + 1)) / 2


def histograms(events: polars.LazyFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], Histogram]:
    """The durations of each group of events, by the values of `keys`; categories come as text."""
    binned = events.group_by(*keys, _BIN.alias("bin")).agg(count=polars.len(), taken_ns=col("dur_ns").sum())
    return _of_bins(binned.collect(engine="streaming"), keys)


def histograms_of(binned: polars.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], Histogram]:
    """The same of what `kernel_bins` gave, or of some of its rows."""
    return _of_bins(binned.group_by(*keys, "bin").agg(col("count", "taken_ns").sum()), keys)


def kernel_bins(trace: Trace) -> polars.DataFrame:
    """The durations of a trace's kernels, a row per work and bin: `KEYS`, `bin`, `count`, and in nanoseconds
    `taken_ns`, `most`, and `begun`, the start of the first. Many analyses ask for sums of these.
    """
    return trace.once("kernel bins", _kernel_bins)


def _kernel_bins(trace: Trace) -> polars.DataFrame:
    timed = kernels.kernels(trace).with_columns(kernel=kernels.NAME)
    found = timed.group_by(*KEYS, _BIN.alias("bin")).agg(
        count=polars.len(), taken_ns=col("dur_ns").sum(), most=col("dur_ns").max(), begun=col("start_ns").min()
    )
    return found.collect(engine="streaming").with_columns(col(polars.Categorical).cast(polars.String))


def _of_bins(binned: polars.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], Histogram]:
    ordered = binned.sort(*keys, "bin", nulls_last=True)
    groups = ordered.group_by(*keys, maintain_order=True).agg("count", col("taken_ns") / col("count"))
    return {
        tuple(row[: len(keys)]): Histogram(numpy.array(row[-2], dtype=numpy.int64), numpy.array(row[-1], dtype=float))
        for row in groups.iter_rows()
    }


@dataclass(frozen=True)
class Ratio:
    """How many times as long one kind of event takes as another: the estimate, and an interval around it."""

    estimate: float
    low: float
    high: float


def ratio_of(second: Histogram, first: Histogram, confidence: float) -> Ratio | None:
    """The median of all ratios of a duration of `second` to one of `first`, with the interval that the Mann-Whitney
    test gives it, whatever the distributions are; None where there are too few durations for that confidence (0 to 1).

    Hodges and Lehmann, "Estimates of location based on rank tests" (1963), on logarithms; the interval as in Hollander
    and Wolfe, "Nonparametric statistical methods", 4.3, by the normal approximation.
    """
    n, m = first.calls, second.calls
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rank = math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12))
    if rank < 1:
        return None
    ours, theirs = _coarse(first), _coarse(second)
    ratios = (theirs.means_ns[:, None] / ours.means_ns).ravel()
    weights = (theirs.counts[:, None] * ours.counts).ravel()
    order = numpy.argsort(ratios)
    below = weights[order].cumsum()
    low, middle, high = (
        float(ratios[order][numpy.searchsorted(below, at)]) for at in (rank, (n * m + 1) // 2, n * m + 1 - rank)
    )
    return Ratio(middle, low, high)


def _coarse(histogram: Histogram) -> Histogram:
    """The same durations in `_COARSE` bins at most."""
    width = -(-len(histogram.counts) // _COARSE)
    starts = numpy.arange(0, len(histogram.counts), width)
    counts = numpy.add.reduceat(histogram.counts, starts)
    sums = numpy.add.reduceat(histogram.counts * histogram.means_ns, starts)
    return Histogram(counts, sums / counts)


def rank_test(first: Histogram, second: Histogram) -> float:
    """The two-sided p-value of the Mann-Whitney test that neither is larger, by its normal approximation with ties.

    Mann and Whitney, "On a test of whether one of two random variables is stochastically larger" (1947).
    """
    values = numpy.concatenate([first.means_ns, second.means_ns])
    order = numpy.argsort(values, kind="stable")
    ours = numpy.concatenate([first.counts, numpy.zeros_like(second.counts)])[order]
    both = numpy.concatenate([first.counts, second.counts])[order]
    starts = numpy.concatenate([[True], numpy.diff(values[order]) > 0]).nonzero()[0]
    ours, ties = numpy.add.reduceat(ours, starts), numpy.add.reduceat(both, starts).astype(float)
    mean_ranks = ties.cumsum() - (ties - 1) / 2
    n, m = first.calls, second.calls
    total = n + m
    statistic = float((ours * mean_ranks).sum()) - n * (n + 1) / 2
    spread = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * max(total - 1, 1)))
    if spread <= 0:
        return 1.0
    z = max(0.0, abs(statistic - n * m / 2) - 0.5) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2))
