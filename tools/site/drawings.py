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
"""Rows of boxes; None is an empty place."""

DRAWINGS: Final[Mapping[str, Drawing]] = {
    "architecture-path": [
        [
            ("op.gelu(x @ w)", "doors/"),
            ("structure + leaves", "lazy/"),
            ("Graph IR", "compiler/graph/"),
            ("rewrites", "rewrite/rules/"),
        ],
        [
            ("values", "handle.py"),
            ("one native call", "runtime/plans/"),
            ("bound plan", "compiler/bind/"),
            ("fusion", "rewrite/fusion/"),
        ],
        [
            None,
            ("machine code", "backend/"),
            ("Tile IR", "scheduling/lowering/"),
            ("schedule", "scheduling/families/"),
        ],
    ],
    "architecture-compiler": [
        [
            ("kernel of a program", "rewrite/fusion/"),
            ("problem", "scheduling/binding/"),
            ("space of schedules", "scheduling/families/"),
            ("tuned winner", "tuning/store/"),
        ],
        [
            ("several launches", "compiler/decompose/"),
            ("Schedule IR", "ir/schedule/"),
            ("schedule", "scheduling/language/"),
            ("cost model", "scheduling/model/"),
        ],
        [("interpreter: the oracle", "ir/interpreter/"), ("Tile IR", "ir/tile/")],
        [
            ("LLVM: CPUs", "backend/llvm/"),
            ("Triton: GPUs", "backend/triton/"),
            ("CUDA Tile: GPUs", "backend/cuda_tile/"),
        ],
    ],
    "architecture-measuring": [
        [("bound plan", "runtime/plans/"), ("driver", "runtime/devices/"), ("records", "profiling/ring/")],
        [("session", "profiling/session/"), ("trace", "profiling/trace/"), ("analyses, pages", "analyze.py viewer/")],
        [("candidates", "tuning/search/"), ("worker process", "tuning/measure/"), ("winners", "tuning/store/")],
        [
            ("mesh, layouts", "sharding/tensors/"),
            ("program per device", "sharding/partitioning/"),
            ("collectives, ranks", "sharding/exchange/"),
        ],
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
        ((0, 2), (0, 3)),
        ((0, 3), (1, 3)),
        ((1, 3), (1, 2)),
        ((1, 2), (1, 1)),
        ((1, 1), (1, 0)),
        ((1, 3), (2, 3)),
        ((2, 3), (2, 2)),
        ((2, 2), (2, 1)),
        ((2, 1), (1, 1)),
    ],
    "architecture-compiler": [
        ((0, 0), (0, 1)),
        ((0, 0), (1, 0)),
        ((0, 1), (0, 2)),
        ((0, 1), (1, 1)),
        ((0, 2), (1, 2)),
        ((0, 3), (1, 2)),
        ((1, 3), (1, 2)),
        ((1, 2), (1, 1)),
        ((1, 1), (2, 1)),
        ((2, 1), (2, 0)),
        ((2, 1), (3, 0)),
        ((2, 1), (3, 1)),
        ((2, 1), (3, 2)),
    ],
    "architecture-measuring": [
        *(((i, j), (i, j + 1)) for i in range(4) for j in range(2)),
        ((0, 2), (1, 1)),
    ],
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
        down = end[0] > start[0]
        points = (x1 + WIDTH // 2, y1 + HEIGHT if down else y1, x2 + WIDTH // 2, y2 if down else y2 + HEIGHT)
    return '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#5a6b7b" marker-end="url(#tip)"/>\n'.format(*points)


def main() -> None:
    """Writes all drawings."""
    for name in DRAWINGS:
        (IMAGES / f"{name}.svg").write_text(svg(name))


if __name__ == "__main__":
    main()
