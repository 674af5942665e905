"""The report of a profile: a table with a row per operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from tessera.profiling.recording.recording import Recording
from tessera.profiling.recording.texts import printed
from tessera.profiling.report.operators import OperatorRow, by_operator, totals_of
from tessera.profiling.trace.recorded_target import recorded_target
from tessera.profiling.trace.table import Trace
from tessera.target import detect
from tessera.target.stored_ceilings import stored_ceilings

HEADINGS: Final = ("Op", "Latency(ms)", "FLOPs(G)", "Bandwidth(GB/s)", "Efficiency(%)")
NOT_MEASURED: Final = "not measured"
UNKNOWN: Final = "efficiency: this machine's ceilings are not measured yet; `tessera quickstart` measures them"
UNMEASURED: Final = "not measured, as kernels of GPUs finish after the call that launches them"


def operator_rows(trace: Trace) -> list[OperatorRow]:
    """What ran, operator by operator; held against the ceilings of the CPU that it ran on where they are known."""
    target = recorded_target(trace.metadata)
    known, memory = (None, ()) if target is None else (target.ceilings, target.memory)
    return by_operator(totals_of(trace), known, memory)


def cells(row: OperatorRow) -> tuple[str, ...]:
    """One line of the table. Latency and work are means per kernel; an operator that ran more than once says how
    often.
    """
    label = row.operator if row.calls == 1 else f"{row.operator} x {row.calls}"
    efficiency = NOT_MEASURED if row.efficiency_pct is None else f"{row.efficiency_pct:.0f}"
    return label, significant(row.latency_ms), significant(row.gflop), significant(row.bandwidth_gbps), efficiency


def significant(value: float) -> str:
    """`value` with three significant digits or more, in plain decimals down to 0.0001."""
    if 0 < abs(value) < 1e-4:
        return f"{value:.2e}"
    decimals = next((n for n in range(6) if abs(value) >= 10 ** (2 - n)), 6) if value else 0
    return f"{value:.{decimals}f}"


def untold(name: str) -> str:
    """Why kernels of another CPU have no efficiency."""
    return f"efficiency: the trace holds no ceilings of {name}, on which it was recorded"


def table_of(rows: Sequence[OperatorRow], notes: Sequence[str] = (), unknown: str = UNKNOWN) -> Table:
    """A rich table of these rows, with the notes below it; `unknown` says why efficiencies are not known."""
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "Op" else "right")
    for row in rows:
        table.add_row(*(Text(printed(cell)) for cell in cells(row)))  # names of a file's are no markup
    told = list(notes) if rows or notes else ["no plan of Tessera ran meanwhile"]
    if any(row.efficiency_pct is None for row in rows):
        told.insert(0, unknown)
    table.caption, table.caption_justify = Text("\n".join(map(printed, told))) if told else None, "left"
    return table


def of_trace(trace: Trace) -> Table:
    """The report of a trace: what ran, operator by operator, and what is not recorded."""
    reasons = trace.metadata.get("dropped_reasons", {})
    lost = [f"{count:,} kernels ran and are not recorded: {reason}" for reason, count in reasons.items() if count]
    rows = operator_rows(trace)
    if not rows and trace.metadata.get("mode") == "summary":
        lost.append('mode="summary" keeps sums alone: profile.summary(path) writes them')
    target = trace.metadata.get("target") or {}
    name = str(target.get("name") or "its device")
    return table_of(rows, lost, UNKNOWN if recorded_target(trace.metadata) else untold(name))


def of_recording(recording: Recording) -> Table:
    """The same of a recording of this process, whose events need not be made columns."""
    notes = [f"{kernels} kernels on {device}: {UNMEASURED}" for device, kernels in recording.unmeasured.items()]
    if recording.overwritten or recording.unfinished:
        notes.append(
            f"{recording.launched} kernels ran, {recording.recorded} are recorded: {recording.overwritten} were "
            f"overwritten (raise TESSERA_PROFILE_RECORDS), {recording.unfinished} were not finished"
        )
    return table_of(by_operator(recording.totals(), stored_ceilings(), detect().memory), notes)
