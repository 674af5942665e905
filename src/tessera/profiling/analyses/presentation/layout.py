"""How wide the columns of a printed table are: none is broken within a word, and what has no room is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rich.cells import cell_len

LONGEST_WORD: Final = 28
"""Cells of a word that are not broken; names of kernels can be hundreds long."""
_BETWEEN: Final = 3
"""Cells around a column: its padding and a line."""


def widths(columns: Mapping[str, Sequence[str]], line: int, optional: Sequence[str]) -> dict[str, int]:
    """The width in cells of each column, by its name, on lines of `line` cells. `columns` are the heading and the cells
    of each; of those that are `optional` the first ones are left out until words have room in the others.
    """
    least = {name: max(_longest_word(text) for text in texts) for name, texts in columns.items()}
    for name in optional:
        if _total(least.values()) <= line:
            break
        least.pop(name, None)
    wanted = {name: max(cell_len(text) for text in columns[name]) for name in least}
    found = dict(least)
    spare = line - _total(least.values())
    for name in sorted(least, key=lambda name: wanted[name] - least[name]):  # what is whole with little comes first
        more = min(max(spare, 0), max(wanted[name] - least[name], 0))
        found[name] += more
        spare -= more
    return found


def _total(columns: Collection[int]) -> int:
    return sum(columns) + _BETWEEN * len(columns) + 1


def _longest_word(text: str) -> int:
    return min(max((cell_len(word) for word in text.split()), default=1), LONGEST_WORD)
