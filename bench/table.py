"""Shows results: rich tables on the terminal, the same cells as Markdown in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.results import CaseResult, Figure, Measurement, SuiteResult, Verdict

if TYPE_CHECKING:
    from rich.console import Console

CASE_COLUMNS = ("contender", "time", "rate", "% of bound", "its time / ours", "batches", "error")
GOAL_COLUMNS = ("case", "threads", "against", "fastest of them", "its time / ours", "goal", "met")
FIGURE_COLUMNS = ("what", "who", "threads", "value", "limit", "met")
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """A titled table of text cells."""

    title: str
    columns: Cells
    rows: Sequence[Cells]


def duration(seconds: float) -> str:
    """`seconds` with three digits or so and a readable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds / scale < 100 else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def threads(count: int) -> str:
    """``1 thread``, ``2 threads``."""
    return "1 thread" if count == 1 else f"{count} threads"


def _met(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[met]


def _case_row(result: CaseResult, measurement: Measurement) -> Cells:
    seconds = measurement.seconds
    if seconds is None:
        return (measurement.contender, f"not measured: {measurement.reason}", "", "", "", "", "")
    work, unit = (result.flops, "GFLOP/s") if result.flops else (result.bytes, "GB/s")
    rate = f"{work / seconds / 1e9:.1f} {unit}" if work else ""
    ratio = result.ratio(measurement)
    total = measurement.kept + measurement.contended
    return (
        measurement.contender,
        duration(seconds),
        rate,
        f"{100 * result.bound_s / seconds:.0f} ({result.binds})" if result.bound_s else "not measured" if work else "",
        "" if ratio is None else f"{ratio:.2f}",
        f"{measurement.kept}/{total}" + ("" if measurement.quiet else " disturbed"),
        "" if measurement.error is None else f"{measurement.error:.0e}",
    )


def case_sheet(result: CaseResult) -> Sheet:
    """One case: every contender, whether it was measured or not."""
    title = f"{result.label}, {threads(result.threads)}"
    return Sheet(title, CASE_COLUMNS, [_case_row(result, m) for m in result.measurements])


def _goal_row(result: CaseResult, verdict: Verdict) -> Cells:
    goal = verdict.goal
    ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f}"
    return (
        result.label,
        str(result.threads),
        goal.name,
        verdict.peer or "",
        ratio,
        f">= {goal.ratio:g}",
        _met(verdict.met) + ("" if verdict.quiet else " (disturbed)"),
    )


def goal_sheet(results: Iterable[CaseResult]) -> Sheet:
    """Every goal of every case, reached or not."""
    rows = [_goal_row(result, verdict) for result in results for verdict in result.verdicts()]
    return Sheet("Goals", GOAL_COLUMNS, rows)


def _limit(figure: Figure) -> str:
    bounds = ((">=", figure.least), ("<=", figure.limit))
    return ", ".join(f"{sign} {bound:.4g} {figure.unit}".rstrip() for sign, bound in bounds if bound is not None)


def _figure_row(figure: Figure) -> Cells:
    value = f"not measured: {figure.reason}" if figure.value is None else f"{figure.value:.3g} {figure.unit}".rstrip()
    limit = _limit(figure)
    met = _met(figure.met) if limit else ""
    return (figure.name, figure.contender, str(figure.threads), value, limit, met)


def sheets(results: Iterable[SuiteResult]) -> list[Sheet]:
    """All tables of a run, in order: cases, figures, then the goals."""
    found: list[Sheet] = []
    cases: list[CaseResult] = []
    for result in results:
        cases.extend(result.cases)
        found.extend(case_sheet(case) for case in result.cases)
        if result.figures:
            rows = [_figure_row(figure) for figure in result.figures]
            found.append(Sheet(f"{result.suite}, {threads(result.threads)}", FIGURE_COLUMNS, rows))
    if cases:
        found.append(goal_sheet(cases))
    return found


def print_sheets(found: Iterable[Sheet], console: Console) -> None:
    """Prints the tables."""
    from rich.table import Table  # the GPU bench, which prints none, runs where there is no rich

    for sheet in found:
        table = Table(title=sheet.title, title_justify="left", show_edge=False)
        for index, column in enumerate(sheet.columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table, "")


def markdown(found: Iterable[Sheet], heading: str) -> str:
    """The tables as Markdown under `heading`."""
    lines = [f"# {heading}", ""]
    for sheet in found:
        lines += [f"## {sheet.title}", ""]
        lines.append("| " + " | ".join(sheet.columns) + " |")
        lines.append("| " + " | ".join("---" for _ in sheet.columns) + " |")
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in sheet.rows]
        lines.append("")
    return "\n".join(lines)
