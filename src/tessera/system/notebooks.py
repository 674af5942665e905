"""HTML that notebooks show: escaped text, small tables, pictures. Colors are those of the notebook's own text, so that
it reads on a light and on a dark page.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

_TEXT: Final = "margin:0;color:inherit;background:none;overflow-x:auto;white-space:pre"
_TABLE: Final = "border-collapse:collapse;color:inherit;background:none;font-size:90%"
_ROW: Final = "border-bottom:1px solid rgba(128,128,128,.35);color:inherit;background:none"
_CELL: Final = "padding:2px 8px"


class ShownAsText:
    """What a notebook shows as what `print` prints."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return preformatted(str(self))


class ShownText(ShownAsText, str):
    """Text that a notebook shows as it is printed, where it would show other text in quotes."""

    __slots__ = ()


def preformatted(text: str) -> str:
    """Text as it stands, in lines that do not break."""
    return f'<pre style="{_TEXT}">{html.escape(text)}</pre>'


def table(
    rows: Sequence[Sequence[str]],
    headings: Sequence[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
    numeric: Sequence[bool] = (),
) -> str:
    """A table of texts, with a line above and lines below it. Columns that `numeric` names are set to the right."""
    parts = [f"<div><b>{html.escape(title)}</b></div>"] if title else []
    lines = [_row("th", headings, numeric), *(_row("td", row, numeric) for row in rows)]
    if rows:
        parts.append(f'<div style="overflow-x:auto"><table style="{_TABLE}">{"".join(lines)}</table></div>')
    parts += [f"<div><small>{html.escape(note)}</small></div>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _row(tag: str, cells: Sequence[str], numeric: Sequence[bool]) -> str:
    if not cells:
        return ""
    sides = ["right" if right else "left" for right in numeric] or ["left"] * len(cells)
    shown = zip(sides, cells, strict=True)
    return (
        f'<tr style="{_ROW}">'
        + "".join(f'<{tag} style="{_CELL};text-align:{side}">{html.escape(cell)}</{tag}>' for side, cell in shown)
        + "</tr>"
    )
