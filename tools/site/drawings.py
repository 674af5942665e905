"""The drawings of the architecture: rows of boxes, arrows from box to box. `python -m tools.site.drawings` writes them
into docs/images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, TypeAlias

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"

WIDTH: Final = 172
HEIGHT: Final = 58
GAP: Final = 36
MARGIN: Final = 12

Box: TypeAlias = tuple[str, str]
"""A box's title, and the line below it: where it stands in the sources."""
Drawing: TypeAlias = Sequence[Sequence[Box | None]]
"""Rows of boxes; None is an empty place. Arrows go along a row, and from the end of a row to what is below it."""

DRAWINGS: Final[Mapping[str, Drawing]] = {
    "architecture-path": [
        [("op.gelu(x @ w)", "doors/"), ("structure + leaves", "lazy/"), ("program", "compiler/graph/")],
        [None, None, ("bound plan", "compiler/bind/")],
        [("values", "handle.py"), ("kernels, threads", "backend/"), ("one native call", "runtime/")],
    ],
    "architecture-compiler": [
        [("Graph IR", "ir/"), ("rewrites", "rewrite/algebra/"), ("fusion", "rewrite/")],
        [None, ("schedule", "scheduling/families/"), ("Schedule IR", "scheduling/")],
        [None, ("Tile IR", "scheduling/lowering/"), ("interpreter", "ir/: the oracle")],
        [None, ("LLVM: CPUs", "backend/llvm/"), ("Triton: GPUs", "backend/triton/")],
    ],
    "architecture-measuring": [
        [("session", "profile.py"), ("records", "profiling/"), ("analyses, viewer", "analyze.py, viewer/")],
        [("candidates", "tuning/search/"), ("worker process", "tuning/measure/"), ("winners on disk", "tuning/store/")],
        [("mesh, layouts", "sharding/"), ("program per device", "sharding/"), ("collectives, ranks", "sharding/job/")],
    ],
}
"""What each drawing shows."""

_HEAD: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"
  height="{height}" font-family="sans-serif" role="img" aria-label="{label}">
<rect width="100%" height="100%" fill="#ffffff"/>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#5a6b7b"/></marker></defs>
"""


def svg(name: str) -> str:
    """A drawing as SVG."""
    rows = DRAWINGS[name]
    columns = max(map(len, rows))
    width = 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * GAP
    places = {(i, j): box for i, row in enumerate(rows) for j, box in enumerate(row) if box is not None}
    label = ", ".join(title for title, _ in places.values())
    parts = [_HEAD.format(width=width, height=height, label=escape(label))]
    parts += [_box(i, j, *box) for (i, j), box in places.items()]
    parts += [_arrow(start, end) for start, end in ARROWS[name]]
    return "".join(parts) + "</svg>\n"


ARROWS: Final[Mapping[str, Sequence[tuple[tuple[int, int], tuple[int, int]]]]] = {
    "architecture-path": [
        ((0, 0), (0, 1)),
        ((0, 1), (0, 2)),
        ((0, 2), (1, 2)),
        ((1, 2), (2, 2)),
        ((2, 2), (2, 1)),
        ((2, 1), (2, 0)),
    ],
    "architecture-compiler": [
        ((0, 0), (0, 1)),
        ((0, 1), (0, 2)),
        ((0, 2), (1, 2)),
        ((1, 1), (1, 2)),
        ((1, 2), (2, 1)),
        ((2, 1), (2, 2)),
        ((2, 1), (3, 1)),
        ((2, 1), (3, 2)),
    ],
    "architecture-measuring": [((i, j), (i, j + 1)) for i in range(3) for j in range(2)],
}
"""From which box to which: (row, column)."""


def _corner(i: int, j: int) -> tuple[int, int]:
    return MARGIN + j * (WIDTH + GAP), MARGIN + i * (HEIGHT + GAP)


def _box(i: int, j: int, title: str, below: str) -> str:
    x, y = _corner(i, j)
    middle = x + WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#eef3f8" stroke="#3b5b7a"/>\n'
        f'<text x="{middle}" y="{y + 25}" text-anchor="middle" font-size="14" fill="#14202b">{escape(title)}</text>\n'
        f'<text x="{middle}" y="{y + 44}" text-anchor="middle" font-size="11" fill="#55636f">{escape(below)}</text>\n'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = _corner(*start), _corner(*end)
    if start[0] == end[0]:
        right = end[1] > start[1]
        points = (x1 + WIDTH if right else x1, y1 + HEIGHT // 2, x2 if right else x2 + WIDTH, y2 + HEIGHT // 2)
    else:
        points = (x1 + WIDTH // 2, y1 + HEIGHT, x2 + WIDTH // 2, y2)
    return '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#5a6b7b" marker-end="url(#tip)"/>\n'.format(*points)


def main() -> None:
    """Writes all drawings."""
    for name in DRAWINGS:
        (IMAGES / f"{name}.svg").write_text(svg(name))


if __name__ == "__main__":
    main()
