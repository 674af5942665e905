"""The report of a profile: a table with a row per operator and work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import polars

from tessera.profiling.analyses.presentation.result import Analysis
from tessera.profiling.analyses.roofline import above_of, doubts_of
from tessera.profiling.recording.recording import Recording
from tessera.profiling.recording.texts import printed
from tessera.profiling.report.operators import OperatorRow, by_operator, longest_of, totals_of
from tessera.profiling.trace.conversion import trace_of
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.table import Trace
from tessera.target import Target

HEADINGS: Final = {
    "operator": "Op",
    "latency_ms": "Latency(ms)",
    "p90_ms": "p90(ms)",
    "first_ms": "First(ms)",
    "gflop": "FLOPs(G)",
    "bandwidth_gbps": "Bandwidth(GB/s)",
    "efficiency_pct": "Efficiency(%)",
    "schedule_source": "Chosen by",
}
MOST_ROWS: Final = 30
"""Rows of a report: those that take most time, in the order in which they first ran."""
UNKNOWN: Final = "efficiency: not measured: `tessera quickstart` measures this machine's ceilings"
UNMEASURED: Final = "not measured, as kernels of GPUs finish after the call that launches them"

_TEXTS: Final = ("operator", "dtype", "binding", "schedule_source")


def operator_rows(trace: Trace) -> list[OperatorRow]:
    """What ran, operator by operator; held against the ceilings of the CPU that it ran on where they are known."""
    target = recorded_target(trace.metadata)
    known, memory = (None, ()) if target is None else (target.ceilings, target.memory)
    return by_operator(totals_of(trace), known, memory)


def untold(name: str) -> str:
    """Why kernels of another CPU have no efficiency."""
    return f"efficiency: not measured: the trace holds no ceilings of {name}, on which it was recorded"


def table_of(
    rows: Sequence[OperatorRow],
    notes: Sequence[str] = (),
    unknown: str = UNKNOWN,
    target: Target | None = None,
    others: tuple[int, float] = (0, 0.0),
) -> Analysis:
    """These rows as a table, with the notes below it; `unknown` says why efficiencies are not known, `target` has the
    ceilings where they are, `others` says how many rows are left out, and their milliseconds. Latencies are medians; an
    operator that ran more than once says how often.
    """
    table = polars.DataFrame(
        [asdict(row) | {"operator": _labelled(row)} for row in rows],
        {name: polars.String if name in _TEXTS else polars.Float64 for name in OperatorRow.__slots__},
        orient="row",
    )
    told = []
    if any(row.efficiency_pct is None for row in rows):
        told.append(unknown)
    left, rest = others
    if left:
        told.append(f"{left:,} more operators and kinds of work take {rest:,.3g} ms; the summary file has all of them")
    told += list(notes) if rows or notes else ["no plan of Tessera ran meanwhile"]
    told += above_of([row.efficiency_pct or 0.0 for row in rows])
    told += doubts_of(None if target is None else target.ceilings)
    untold = "schedule_source" if all(row.schedule_source is None for row in rows) else ""
    headings = {name: text for name, text in HEADINGS.items() if name != untold}
    optional = ("schedule_source", "first_ms", "p90_ms")
    return Analysis("Operators", table, headings, tuple(map(printed, told)), optional=optional)


def _labelled(row: OperatorRow) -> str:
    return row.operator if row.calls == 1 else f"{row.operator} x {row.calls}"


def of_trace(trace: Trace, notes: Sequence[str] = ()) -> Analysis:
    """The report of a trace: what ran, operator by operator, and what is not recorded."""
    reasons = trace.metadata.get("dropped_reasons", {})
    lost = [f"{count:,} kernels ran and are not recorded: {reason}" for reason, count in reasons.items() if count]
    target = recorded_target(trace.metadata)
    name = str((trace.metadata.get("target") or {}).get("name") or "its device")
    totals, left, seconds = longest_of(trace, MOST_ROWS)
    known, memory = (None, ()) if target is None else (target.ceilings, target.memory)
    rows = by_operator(totals, known, memory)
    return table_of(rows, notes or lost, UNKNOWN if target else untold(name), target, (left, 1e3 * seconds))


def of_recording(recording: Recording) -> Analysis:
    """The same of a recording of this process."""
    notes = [f"{kernels} kernels on {device}: {UNMEASURED}" for device, kernels in recording.unmeasured.items()]
    if recording.overwritten or recording.unfinished:
        notes.append(
            f"{recording.launched} kernels ran, {recording.recorded} are recorded: {recording.overwritten} were "
            f"overwritten (raise TESSERA_PROFILE_RECORDS), {recording.unfinished} were not finished"
        )
    return of_trace(trace_of(recording), notes)
