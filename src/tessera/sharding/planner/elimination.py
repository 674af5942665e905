"""The exact minimum of a sum of tables over some variables, one variable eliminated after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessera.errors import ArgumentError
from tessera.sharding.planner.communication import Numbers

_LARGEST = 1 << 24
"""Entries of a table that is still made; above it the problem is too wide for an exact answer."""


class CostTable(NamedTuple):
    """Costs by the values of some variables, in the order of the array's dimensions."""

    variables: tuple[int, ...]
    costs: Numbers


class Minimum(NamedTuple):
    """The least sum, the value of each variable there, and how many variables the widest table joined."""

    cost: float
    values: dict[int, int]
    width: int


def minimise(sizes: Mapping[int, int], tables: Sequence[CostTable]) -> Minimum:
    """The least sum of `tables` over variables with `sizes` values each; the first value wins a tie.

    The variable whose tables join to the smallest one goes first. Raises ArgumentError where one would be too large.
    """
    left = list(tables)
    choices: list[tuple[int, tuple[int, ...], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = []
    remaining = dict(sizes)
    constant, width = 0.0, 0
    while remaining:
        variable = min(remaining, key=lambda each: (_joined_size(each, remaining, left), each))
        own = [table for table in left if variable in table.variables]
        left = [table for table in left if variable not in table.variables]
        others = tuple(sorted({each for table in own for each in table.variables} - {variable}))
        width = max(width, len(others) + 1)
        names = (*others, variable)
        if np.prod([float(remaining[each]) for each in names]) > _LARGEST:
            raise ArgumentError(f"layouts of {len(names)} operators depend on one another: too many to decide at once")
        total = np.zeros([remaining[each] for each in names])
        for table in own:
            total = total + _aligned(table, names)
        best = np.argmin(total, axis=-1)
        choices.append((variable, others, best))
        least = np.min(total, axis=-1)
        if others:
            left.append(CostTable(others, least))
        else:
            constant += float(least)
        del remaining[variable]
    values: dict[int, int] = {}
    for variable, others, best in reversed(choices):
        values[variable] = int(best[tuple(values[each] for each in others)])
    return Minimum(constant, values, width)


def _joined_size(variable: int, sizes: Mapping[int, int], tables: Sequence[CostTable]) -> float:
    joined = {each for table in tables if variable in table.variables for each in table.variables} | {variable}
    return float(np.prod([float(sizes[each]) for each in joined]))


def _aligned(table: CostTable, names: tuple[int, ...]) -> Numbers:
    """A table's costs with a dimension for each of `names`."""
    order = [table.variables.index(each) for each in names if each in table.variables]
    shape = [table.costs.shape[table.variables.index(each)] if each in table.variables else 1 for each in names]
    return table.costs.transpose(order).reshape(shape)
