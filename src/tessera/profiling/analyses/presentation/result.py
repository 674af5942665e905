"""What an analysis gives back: rows, printed as a table, drawn, and handed to polars."""

from __future__ import annotations

import io
import re
import shutil
import textwrap
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.analyses.presentation import layout
from tessera.system import notebooks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PRINTED: Final = 30
"""Rows that printing shows; `to_polars()` has all."""

UNLIMITED: Final = 160
"""Characters of a line where nobody says how wide lines are."""

_WIDEST: Final = 1000
"""Characters that a table may need."""

_DARK: Final = re.compile("#(000000|333333)")
"""The colors of text and lines, as matplotlib's writer of SVG has them."""

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")

Drawing = Callable[["Figure", polars.DataFrame], None]


@dataclass(frozen=True, repr=False)
class Analysis:
    """The rows of one analysis. `print(analysis)` shows a table, `for row in analysis` gives named tuples.

    `headings` are the printed names of columns, with units; columns without one are not printed. `missing` says why
    columns are null as a whole. `notes` stand below the printed table. `optional` are the columns that narrow terminals
    do not show, in the order in which they go.
    """

    title: str
    table: polars.DataFrame
    headings: Mapping[str, str]
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    drawing: Drawing | None = None
    optional: tuple[str, ...] = ()

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

    def _repr_html_(self) -> str:
        """The rows that are printed, with all columns that have a heading."""
        shown = {name: text for name, text in self.headings.items() if name not in self.missing}
        rows = self.table.head(MOST_PRINTED).select(list(shown))
        notes = [*_left_out(self, []), *self.notes, *_reasons(self)] if len(rows) else ["no rows", *self.notes]
        cells = [[cell(value) for value in row] for row in rows.iter_rows()]
        numeric = [dtype.is_numeric() for dtype in rows.dtypes]
        return notebooks.table(cells, list(shown.values()), self.title, notes, numeric)

    def plot(self, path: str | Path) -> Path:
        """Draws the rows to `path`, in the format that its ending says (.png, .svg, .pdf), and gives the path.

        Raises ArgumentError (E_ARGUMENT) where there is nothing to draw and for a format that there is not,
        ProfileError (E_PROFILE) where the file cannot be written.
        """
        if self.drawing is None or self.table.is_empty():
            raise ArgumentError(f"{self.title}: there is nothing to draw", hints=[*_reasons(self), *self.notes])
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


def svg(draw: Callable[[Figure], None]) -> str:
    """Has a figure drawn, for a page of somebody else's: what is dark in it has the color of that page's text, and
    nothing lies behind it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    out = io.StringIO()
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    with matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none"}):
        draw(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    picture = _DARK.sub("currentColor", out.getvalue()[out.getvalue().index("<svg ") :])
    picture = picture.replace("#dddddd", "#80808060")  # grids
    return picture.replace("<svg ", '<svg style="max-width:100%;height:auto;fill:currentColor" ', 1)


def log_scales(axes: Axes) -> None:
    """Makes both axes logarithmic, with plain numbers: matplotlib's own are formulas, which `drawn` turns off."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def printed(analysis: Analysis) -> str:
    """The table as text, as wide as the terminal: columns that have no room are left out, and named below. Lines of
    text are broken at a terminal only, so that a program finds them whole.
    """
    from rich.console import Console
    from rich.table import Table

    line = shutil.get_terminal_size((0, 0)).columns
    shown = {name: text for name, text in analysis.headings.items() if name not in analysis.missing}
    rows = analysis.table.head(MOST_PRINTED)
    cells = {name: [text, *map(cell, rows[name])] for name, text in shown.items()}
    fitted = layout.widths(cells, line or UNLIMITED, analysis.optional)
    table = Table(title=analysis.title, title_justify="left", title_style="bold")
    for name, width in fitted.items():
        numeric = rows.schema[name].is_numeric()
        table.add_column(shown[name], justify="right" if numeric else "left", overflow="fold", width=width)
    for row in zip(*(cells[name][1:] for name in fitted), strict=True):
        table.add_row(*row)
    out = io.StringIO()
    # No terminal, also where colors are forced: text has no escapes, and is as wide as this says where TERM is dumb.
    console = Console(file=out, width=_WIDEST, force_terminal=False, markup=False, highlight=False, emoji=False)
    console.print(table if len(rows) else f"{analysis.title}: no rows")
    narrow = [text for name, text in shown.items() if name not in fitted and len(rows)]
    for told in [*_left_out(analysis, narrow), *analysis.notes, *_reasons(analysis)]:
        out.write("\n".join(_broken(told, line)) + "\n")
    return "\n".join(each.rstrip() for each in out.getvalue().splitlines())


def _broken(text: str, line: int) -> list[str]:
    """A line of text in lines that are as wide as `line`, 0 for any width; words are whole."""
    if not line:
        return [text]
    return textwrap.wrap(text, line, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _left_out(analysis: Analysis, narrow: list[str]) -> list[str]:
    more = len(analysis.table) - MOST_PRINTED
    rows = [f"{more} more rows: to_polars() has all of them"] if more > 0 else []
    return rows + ([f"no room for: {', '.join(narrow)}; a wider terminal or to_polars() has them"] if narrow else [])


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
    if 0 < abs(value) < 1e-4 or abs(value) >= 1e15:
        return f"{value:.3g}"
    decimals = next((n for n in range(6) if abs(value) >= 10 ** (2 - n)), 6) if value else 0
    return f"{value:,.{decimals}f}"


def work(flops: float | None, nbytes: float | None) -> str:
    """Operations and bytes of one call, "33.55 MFLOP, 1.2 MB"; "" where neither is known."""
    return ", ".join(_amount(value, unit) for value, unit in ((flops, "FLOP"), (nbytes, "B")) if value)


def _amount(value: float, unit: str) -> str:
    prefix = next((place for place in range(len(_PREFIXES)) if value < 1000 ** (place + 1)), len(_PREFIXES) - 1)
    return f"{value / 1000**prefix:.4g} {_PREFIXES[prefix]}{unit}"


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
