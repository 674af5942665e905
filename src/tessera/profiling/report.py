"""The table that `session.report()` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera.profiling.aggregate import OperatorRow, by_operator
from tessera.profiling.noted import printed
from tessera.target import detect
from tessera.target.stored_ceilings import stored_ceilings

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session

HEADINGS: Final = ("Op", "Latency(ms)", "FLOPs(G)", "Bandwidth(GB/s)", "Efficiency(%)")
NOT_MEASURED: Final = "not measured"
UNKNOWN: Final = "efficiency: this machine's ceilings are not measured yet; `tessera quickstart` measures them"
UNMEASURED: Final = "not measured, as kernels of GPUs finish after the call that launches them"


def operator_rows(session: Session) -> list[OperatorRow]:
    """The rows of the report, measured against this machine's stored ceilings where there are any."""
    return by_operator(session, stored_ceilings(), detect().memory)


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


def render(session: Session) -> Table:
    """The report as a rich table."""
    notes = [f"{kernels} kernels on {device}: {UNMEASURED}" for device, kernels in session.unmeasured.items()]
    if session.overwritten or session.unfinished:
        notes.append(
            f"{session.launched} kernels ran, {session.recorded} are recorded: {session.overwritten} were overwritten "
            f"(raise TESSERA_PROFILE_RECORDS), {session.unfinished} were not finished"
        )
    return table_of(operator_rows(session), notes)


def print_report(session: Session) -> None:
    """Prints the table to the standard output."""
    Console().print(render(session))
