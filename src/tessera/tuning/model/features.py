"""What `ridge.py` is told of schedules: how their estimates divide into resources, and the knobs' values.

A feature is a plain value, so that coefficients are data. ("share", term, "") is the term's part of the estimated time;
("unlike", knob, "") is 1 where a knob has not the default's value, which somebody found to be good; ("product", factor,
factor) is a product, and ("product", factor, "") one factor alone. A factor is a text:
`tile.0` is log2 of the first number of a tuple, `unroll` log2 of a number, `order=rows` 1 where the knob has the value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import Estimates, Seconds

Feature: TypeAlias = tuple[str, str, str]
"""Kind ("share", "unlike" or "product"), and one or two names."""
Matrix: TypeAlias = NDArray[np.float64]


def features_of(schedules: Iterable[Columns], terms: Iterable[str]) -> list[Feature]:
    """The features that can tell these schedules apart, always in the same order: a knob of one value is none. Factors
    alone, their squares, and products of two: what one knob gains depends on others.
    """
    values: dict[str, dict[KnobValue, None]] = {}
    for columns in schedules:
        for knob, known in columns.choices.items():
            used = np.unique(columns.codes[knob]).tolist()
            values.setdefault(knob, {}).update(dict.fromkeys(known[code] for code in used))
    factors = [factor for knob, known in sorted(values.items()) if len(known) > 1 for factor in _factors(knob, known)]
    found: list[Feature] = [("share", term, "") for term in sorted(set(terms))]
    found += [("unlike", knob, "") for knob, known in sorted(values.items()) if len(known) > 1]
    found += [("product", factor, "") for factor in factors]
    pairs = itertools.combinations_with_replacement(factors, 2)
    return found + [("product", a, b) for a, b in pairs if _tells_more(a, b)]


def _factors(knob: str, known: Iterable[KnobValue]) -> list[str]:
    values = list(known)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return [knob]
    if all(isinstance(value, tuple) for value in values):
        places = zip(*(value for value in values if isinstance(value, tuple)), strict=False)
        return [f"{knob}.{place}" for place, column in enumerate(places) if len(set(column)) > 1]
    return [f"{knob}={value}" for value in sorted(values, key=str)[1:]]


def _tells_more(a: str, b: str) -> bool:
    """Whether a product of two factors says what neither does: it is 0, or one of them, for values of the same knob."""
    return "=" not in a or "=" not in b or a.partition("=")[0] != b.partition("=")[0]


def matrix(
    features: Sequence[Feature], schedules: Columns, estimates: Estimates, default: Schedule, missing: Seconds
) -> Matrix:
    """A row for each schedule, a column for each feature; `missing` stands where a schedule has no such number."""
    rows = np.empty((len(schedules), len(features)))
    known: dict[str, Seconds | None] = {"": np.ones(len(schedules))}
    for place, (kind, a, b) in enumerate(features):
        column: Seconds | None = None
        if kind == "share":
            column = estimates.terms[a] / estimates.seconds if a in estimates.terms else None
        elif kind == "unlike":
            column = _unlike(a, schedules, default)
        else:
            for factor in (a, b):
                if factor not in known:
                    known[factor] = _column(factor, schedules)
            first, second = known[a], known[b]
            column = None if first is None or second is None else first * second
        rows[:, place] = missing[place] if column is None else column
    return rows


def _unlike(knob: str, schedules: Columns, default: Schedule) -> Seconds | None:
    known = knob in schedules.choices and knob in default
    return np.where(schedules.equals(knob, default[knob]), 0.0, 1.0) if known else None


def _column(factor: str, schedules: Columns) -> Seconds | None:
    """The values of a factor; None where the schedules have no such knob, or numbers of another kind."""
    knob, _, wanted = factor.partition("=")
    name, _, place = knob.partition(".")
    if name not in schedules.choices:
        return None
    values = schedules.choices[name]
    if wanted:
        is_wanted = np.array([float(str(value) == wanted) for value in values])
        return np.asarray(is_wanted[schedules.codes[name]])
    if all(isinstance(value, int) for value in values) and not place:
        return np.asarray(np.log2(1.0 + schedules.integer(name)))
    if place and all(isinstance(value, tuple) and len(value) > int(place) for value in values):
        return np.asarray(np.log2(1.0 + schedules.integers(name)[int(place)]))
    return None
