"""One row per operator: the numbers behind the report and the summary file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.profiling.roofline import bound
from tessera.profiling.schema import StepFacts
from tessera.target import Ceilings, MemoryLevel

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session
    from tessera.profiling.table import Trace


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


def by_operator(session: Session, ceilings: Ceilings | None, levels: Sequence[MemoryLevel] = ()) -> list[OperatorRow]:
    """Rows in order of each operator's first kernel. `ceilings` None: efficiencies are None."""
    sums: dict[tuple[str, str], _Sums] = {}
    for total in session.totals().values():
        facts = session.step_facts(total.plan, total.step)
        into = sums.setdefault((facts.operator, facts.dtype), _Sums(bindings={}))
        _add(into, facts, total.calls, total.seconds, total.fastest)
        _add_bound(
            into, facts, total.calls, total.workers, None if total.device else ceilings, levels
        )  # the ceilings are the CPU's
    return [_row(operator, dtype, each) for (operator, dtype), each in sums.items()]


def by_operator_in(trace: Trace, ceilings: Ceilings | None, levels: Sequence[MemoryLevel] = ()) -> list[OperatorRow]:
    """The same of a trace. Kernels of other devices than CPUs are not held against these ceilings."""
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
    sums: dict[tuple[str, str], _Sums] = {}
    for row in groups.iter_rows(named=True):
        facts = StepFacts(
            row["operator"] or "", "", flops=row["flops"] or 0.0, bytes=row["bytes"] or 0.0, dtype=row["dtype"] or ""
        )
        into = sums.setdefault((facts.operator, facts.dtype), _Sums(bindings={}))
        _add(into, facts, row["calls"], row["total"], row["fastest"])
        own = ceilings if (row["device"] or "cpu") == "cpu" else None
        _add_bound(into, facts, row["calls"], row["workers"] or 1, own, levels)
    return [_row(operator, dtype, each) for (operator, dtype), each in sums.items()]


def _add(into: _Sums, facts: StepFacts, calls: int, seconds: float, fastest: float) -> None:
    into.calls += calls
    into.seconds += seconds
    into.fastest = min(into.fastest, fastest)
    into.flops += calls * facts.flops
    into.bytes += calls * facts.bytes


def _add_bound(
    into: _Sums, facts: StepFacts, calls: int, workers: int, ceilings: Ceilings | None, levels: Sequence[MemoryLevel]
) -> None:
    found = bound(facts, workers, ceilings, levels) if ceilings is not None else None
    if found is None or into.bound_seconds is None or into.bindings is None:
        into.bound_seconds = None
        return
    into.bound_seconds += calls * found.seconds
    into.bindings[found.binding] = into.bindings.get(found.binding, 0.0) + calls * found.seconds


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
