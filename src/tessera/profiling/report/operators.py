"""One row per operator: the numbers behind the report and the summary file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.errors import ProfileError
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.recording.totals import OperatorTotal
from tessera.profiling.report.bounds import bound
from tessera.target import Ceilings, MemoryLevel

if TYPE_CHECKING:
    from tessera.profiling.trace.table import Trace


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All kernels of one operator label and element type. Work and latency are means per kernel.

    `efficiency_pct` is the time that the measured ceilings allow over the time taken, 0-100; `binding` what sets that
    bound. Both are None where a kernel's ceilings were not measured or its work is not known.
    """

    operator: str
    dtype: str
    calls: int
    total_ms: float
    latency_ms: float
    fastest_ms: float
    gflop: float
    gflop_per_s: float
    bandwidth_gbps: float
    efficiency_pct: float | None
    binding: str | None


@dataclass(slots=True)
class _Sums:
    calls: int = 0
    seconds: float = 0.0
    fastest: float = float("inf")
    flops: float = 0.0
    bytes: float = 0.0
    bound_seconds: float | None = 0.0
    bindings: dict[str, float] | None = None


def by_operator(
    totals: Iterable[OperatorTotal], ceilings: Ceilings | None, levels: Sequence[MemoryLevel] = ()
) -> list[OperatorRow]:
    """Rows in order of each operator's first kernel. `ceilings` None: efficiencies are None, as those of other devices
    than CPUs, whose ceilings these are.
    """
    sums: dict[tuple[str, str], _Sums] = {}
    for total in totals:
        into = sums.setdefault((total.operator, total.dtype), _Sums(bindings={}))
        _add(into, total)
        _add_bound(into, total, None if total.device else ceilings, levels)
    return [_row(operator, dtype, each) for (operator, dtype), each in sums.items()]


def totals_of(trace: Trace) -> list[OperatorTotal]:
    """The sums of a trace's kernels, and those that its metadata tell of sessions that kept sums alone. Raises
    ProfileError where the metadata tell something else.
    """
    try:
        told = [OperatorTotal(**each) for each in trace.metadata.get("totals", ())]
    except TypeError as error:
        raise ProfileError(f"the sums in the trace's metadata are damaged: {error}") from error
    return [*told, *_summed(trace)]


def _summed(trace: Trace) -> list[OperatorTotal]:
    import polars

    work = ("dtype", "device", "workers", "flops", "bytes")
    name = polars.coalesce(polars.col("operator", "kernel_name").cast(polars.String)).alias("operator")
    taken = polars.col("dur_ns")
    groups = (
        trace.events.filter(polars.col("kind") == "kernel")
        .group_by(name, *work)
        .agg(calls=polars.len(), total=taken.sum() / 1e9, fastest=taken.min() / 1e9, first=polars.col("start_ns").min())
        .sort("first", "operator")
        .collect(engine="streaming")
    )
    return [
        OperatorTotal(
            operator=row["operator"] or "",
            dtype=row["dtype"] or "",
            flops=row["flops"] or 0.0,
            bytes=row["bytes"] or 0.0,
            workers=row["workers"] or 1,
            device=int((row["device"] or "cpu") != "cpu"),
            calls=row["calls"],
            seconds=row["total"],
            fastest=row["fastest"],
        )
        for row in groups.iter_rows(named=True)
    ]


def _add(into: _Sums, total: OperatorTotal) -> None:
    into.calls += total.calls
    into.seconds += total.seconds
    into.fastest = min(into.fastest, total.fastest)
    into.flops += total.calls * total.flops
    into.bytes += total.calls * total.bytes


def _add_bound(into: _Sums, total: OperatorTotal, ceilings: Ceilings | None, levels: Sequence[MemoryLevel]) -> None:
    facts = StepFacts(total.operator, "", total.flops, total.bytes, total.dtype)
    found = bound(facts, total.workers, ceilings, levels) if ceilings is not None else None
    if found is None or into.bound_seconds is None or into.bindings is None:
        into.bound_seconds = None
        return
    into.bound_seconds += total.calls * found.seconds
    into.bindings[found.binding] = into.bindings.get(found.binding, 0.0) + total.calls * found.seconds


def _row(operator: str, dtype: str, sums: _Sums) -> OperatorRow:
    bindings = sums.bindings if sums.bound_seconds is not None else None
    seconds = max(sums.seconds, 1e-12)  # the clock may show no time at all for a kernel of a few nanoseconds
    return OperatorRow(
        operator=operator,
        dtype=dtype,
        calls=sums.calls,
        total_ms=1e3 * sums.seconds,
        latency_ms=1e3 * sums.seconds / sums.calls,
        fastest_ms=1e3 * sums.fastest,
        gflop=sums.flops / sums.calls / 1e9,
        gflop_per_s=sums.flops / seconds / 1e9,
        bandwidth_gbps=sums.bytes / seconds / 1e9,
        efficiency_pct=100 * sums.bound_seconds / seconds if sums.bound_seconds is not None else None,
        binding=max(bindings, key=lambda name: bindings[name]) if bindings else None,
    )
