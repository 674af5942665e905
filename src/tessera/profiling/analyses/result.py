"""What an analysis gives back: rows, printed as a table, drawn, and handed to polars."""

from __future__ import annotations

import io
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars

from tessera.errors import ArgumentError, ProfileError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PRINTED: Final = 30
"""Rows that printing shows; `to_polars()` has all."""

UNLIMITED: Final = 160
"""Characters of a line where nobody says how wide lines are."""

_WIDEST: Final = 1000
"""Characters that a table may need."""

Drawing = Callable[["Figure", polars.DataFrame], None]


@dataclass(frozen=True, repr=False)
class Analysis:
    """The rows of one analysis. `print(analysis)` shows a table, `for row in analysis` gives named tuples.

    `headings` are the printed names of columns, with units; columns without one are not printed. `missing` says why
    columns are null as a whole. `notes` stand below the printed table.
    """

    title: str
    table: polars.DataFrame
    headings: Mapping[str, str]
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    drawing: Drawing | None = None

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars table."""
        return self.table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Any]:
        row = namedtuple("Row", self.table.columns)  # type: ignore[misc]
        return (row(*values) for values in self.table.iter_rows())

    def __str__(self) -> str:
        return printed(self)

    __repr__ = __str__

    def plot(self, path: str | Path) -> Path:
        """Draws the rows to `path`, in the format that its ending says (.png, .svg, .pdf), and gives the path.

        Raises ArgumentError (E_ARGUMENT) where there is nothing to draw and for a format that there is not,
        ProfileError (E_PROFILE) where the file cannot be written.
        """
        if self.drawing is None or self.table.is_empty():
            raise ArgumentError(f"{self.title}: there is nothing to draw", hints=_reasons(self))
        drawing, table = self.drawing, self.table
        return drawn(lambda figure: drawing(figure, table), path)


def drawn(draw: Callable[[Figure], None], path: str | Path) -> Path:
    """Has a figure drawn and writes it. Raises ArgumentError for a format that there is not, ProfileError for a path
    that refuses.
    """
    import matplotlib
    from matplotlib.figure import Figure

    target = Path(path)
    figure = Figure(figsize=(9.0, 5.6), dpi=130, layout="constrained")
    try:
        with matplotlib.rc_context({"text.parse_math": False}):  # names of kernels are no formulas
            draw(figure)
            figure.savefig(target)
    except ValueError as error:
        raise ArgumentError(f"{target}: {error}") from error
    except OSError as error:
        raise ProfileError(f"the picture could not be written to {target}: {error.strerror or error}") from error
    return target


def printed(analysis: Analysis) -> str:
    """The table as text, as wide as the terminal; wider where words would have to be broken."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(title=analysis.title, title_justify="left", title_style="bold")
    shown = {name: text for name, text in analysis.headings.items() if name not in analysis.missing}
    for name, text in shown.items():
        numeric = analysis.table.schema[name].is_numeric()
        table.add_column(text, justify="right" if numeric else "left", overflow="fold")
    for row in analysis.table.head(MOST_PRINTED).select(*shown).iter_rows():
        table.add_row(*(cell(value) for value in row))
    out = io.StringIO()
    width = shutil.get_terminal_size((UNLIMITED, 0)).columns
    # No terminal, also where colors are forced: text has no escapes, and is as wide as this says where TERM is dumb.
    console = Console(file=out, width=_WIDEST, force_terminal=False, markup=False, highlight=False, emoji=False)
    console.width = max(width, Measurement.get(console, console.options, table).minimum)
    console.print(table if len(analysis.table) else f"{analysis.title}: no rows")
    for line in [*_left_out(analysis), *analysis.notes, *_reasons(analysis)]:
        console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _left_out(analysis: Analysis) -> list[str]:
    more = len(analysis.table) - MOST_PRINTED
    return [f"{more} more rows: to_polars() has all of them"] if more > 0 else []


def _reasons(analysis: Analysis) -> list[str]:
    return [f"{', '.join(names)}: not measured: {why}" for why, names in by_reason(analysis.missing).items()]


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """The names that have each reason."""
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return found


def cell(value: object) -> str:
    """A value as tables print it: numbers with three significant digits or more, "-" where there is none."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        # Names come from files: what would steer the terminal is not printed.
        return "".join(each if each.isprintable() else "?" for each in str(value))
    if 0 < abs(value) < 1e-4 or abs(value) >= 1e9:
        return f"{value:.3g}"
    decimals = next((n for n in range(6) if abs(value) >= 10 ** (2 - n)), 6) if value else 0
    return f"{value:,.{decimals}f}"


def bars(figure: Figure, labels: list[str], values: list[float], axis: str, title: str) -> None:
    """Horizontal bars, the first on top."""
    axes = figure.add_subplot()
    places = range(len(labels))
    axes.barh(places, values, color="#1b6ca8", height=0.7)
    axes.set_yticks(places, [cell(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(axis)
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
