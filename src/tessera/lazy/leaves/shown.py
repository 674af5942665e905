"""Leaves as people see them: text, and the table that a notebook shows, of the outermost rows and columns."""

from __future__ import annotations

import math
import re
from typing import Final

import torch

from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf
from tessera.system import notebooks

EDGE: Final = 4
"""Rows, and columns, that are shown at either end."""

MOST_PRINTED: Final = 1 << 20
"""Elements of the largest leaf whose values are shown as text."""

_DTYPE_NOTE: Final = re.compile(r",\s+dtype=[^,]*$")


def as_text(leaf: Leaf, head: str) -> str:
    """`head` and the values of a leaf, as torch prints them; of a large one how many there are."""
    size = math.prod(leaf.shape)
    if size > MOST_PRINTED:
        return f"{head}, {size} values)"
    # torch indents what follows the first line by the width of "tensor(".
    text = _DTYPE_NOTE.sub("", repr(to_torch(leaf).cpu())).removeprefix("tensor(")
    values = text.replace("\n       ", "\n")
    return f"{head},\n{values.removesuffix(')')})"


def as_html(leaf: Leaf, title: str) -> str:
    """The values of a leaf; of one with more than two dimensions the last matrix of each is left out but the first."""
    values = to_torch(leaf)
    notes: tuple[str, ...] = ()
    if values.ndim > 2 and values.numel():
        first = ", ".join(["0"] * (values.ndim - 2))
        values, notes = values[(0,) * (values.ndim - 2)], (f"the matrix at [{first}]",)
    if not values.numel():
        return notebooks.table((), title=title)
    matrix = values.reshape(1, -1) if values.ndim < 2 else values
    rows = [["…"] if row is None else _row(matrix, row) for row in _ends(matrix.shape[0])]
    width = max(map(len, rows))
    rows = [row * width if row == ["…"] else row for row in rows]
    return notebooks.table(rows, title=title, notes=notes, numeric=[True] * width)


def _row(matrix: torch.Tensor, row: int) -> list[str]:
    return ["…" if column is None else _text(matrix[row, column]) for column in _ends(matrix.shape[1])]


def _ends(extent: int) -> list[int | None]:
    """The places of a dimension that are shown, None where some are left out."""
    if extent <= 2 * EDGE:
        return list(range(extent))
    return [*range(EDGE), None, *range(extent - EDGE, extent)]


def _text(value: torch.Tensor) -> str:
    item = value.cpu().item()
    return f"{item:.5g}" if isinstance(item, float | complex) else str(item)
