"""The order in which the dimensions of maps and reductions are walked, so that vectors go along what is contiguous.

Extents are known here, and arrays by their strides: a column has those of all arrays along a dimension, loads first.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import Final, TypeAlias

from tessera.scheduling.binding.axes import Column

Order: TypeAlias = list[int]
"""Dimensions of the domain, the one along vectors last."""

SHORT_ROW: Final = 16
"""Elements of a row below which most of a vector along it is empty."""


def map_order(domain: Sequence[int], columns: Sequence[Column], loads: int) -> Order | None:
    """The dimensions of a map in the order in which its first result lies in memory; None for the order they have."""
    wide = [column[loads] for extent, column in zip(domain, columns, strict=True) if extent != 1]
    if all(map(ge, wide, wide[1:])):
        return None
    return sorted(range(len(domain)), key=lambda dimension: -columns[dimension][loads])


def reduction_order(
    domain: Sequence[int], reduced: tuple[int, int], columns: Sequence[Column], loads: int
) -> tuple[Order, tuple[int, int]] | None:
    """The dimensions of a reduction over those in the range `reduced`, and that range among them, where vectors would
    go along a dimension that no large array is contiguous along, and there is another one: the channels of images that
    have them last. None where the order of the domain is as good.
    """
    first, last = reduced
    rank = len(domain)
    wide = [dimension for dimension in range(rank) if domain[dimension] != 1]
    within = [dimension for dimension in wide if first <= dimension < last]
    lanes = next((dimension for dimension in reversed(wide) if dimension >= last), within[-1] if within else None)
    if lanes is None:
        return None
    large = [array for array in range(len(columns[0])) if array < loads or columns[within[-1] if within else 0][array]]
    units = {dimension: sum([columns[dimension][array] == 1 for array in large]) for dimension in wide}
    unit = max(wide, key=units.__getitem__)
    if units[lanes] or not units[unit]:
        return None
    if first <= unit < last:
        # Rows are reduced along themselves, in one walk; those much shorter than a vector rather side by side.
        if domain[unit] < SHORT_ROW:
            return None
        return [*range(first), *range(last, rank), *range(first, last)], (rank - last + first, rank)
    order = [dimension for dimension in range(rank) if dimension != unit] + [unit]
    before = int(unit < first)
    return order, (first - before, last - before)
