"""Many schedules at once, as a column of values for each knob; and arithmetic that serves one schedule and many.

Rules and cost models are written once, over what `Knobs` gives: of a `Schedule` plain numbers, of `Columns` arrays with
a number for each schedule. So a rule that takes a microsecond for one schedule takes some ten for a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.schedule import KnobValue, Schedule

Number: TypeAlias = Any
"""A number or a truth value, or an array of them: one for each schedule."""
Codes: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]


class Knobs(Protocol):
    """One schedule or many: what rules and cost models ask of them. A knob that is missing is a KeyError."""

    def integer(self, knob: str) -> Number:
        """The value of an integer knob."""

    def integers(self, knob: str) -> tuple[Number, ...]:
        """The value of a tuple knob: a number, or a column, for each place."""

    def flag(self, knob: str) -> Number:
        """Whether a knob is neither False nor 0."""

    def equals(self, knob: str, value: KnobValue) -> Number:
        """Whether a knob has a value."""


class Columns(Sequence[Schedule]):
    """Schedules of the same knobs, in an order. `choices` are the values that a knob takes, `codes` (one array of the
    same length for each knob) say which of them each schedule has. Schedules are made when they are asked for.
    """

    def __init__(self, choices: Mapping[str, tuple[KnobValue, ...]], codes: Mapping[str, Codes]) -> None:
        self.choices, self.codes = choices, codes
        self._length = len(next(iter(codes.values()))) if codes else 0
        self._decoded: dict[str, Any] = {}
        self._tables: dict[tuple[str, object], NDArray[Any]] = {}  # by choice; what has the same choices shares them

    @classmethod
    def of(cls, schedules: Iterable[Schedule]) -> Columns:
        """These schedules, which have the same knobs; themselves where they are columns already."""
        if isinstance(schedules, cls):
            return schedules
        rows = list(schedules)
        choices: dict[str, tuple[KnobValue, ...]] = {}
        codes: dict[str, Codes] = {}
        for knob in rows[0] if rows else ():
            values = [row[knob] for row in rows]
            choices[knob] = tuple(dict.fromkeys(values))
            places = {value: place for place, value in enumerate(choices[knob])}
            codes[knob] = np.array([places[value] for value in values], np.intp)
        return cls(choices, codes)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Schedule: ...

    @overload
    def __getitem__(self, index: slice) -> Columns: ...

    def __getitem__(self, index: int | slice) -> Schedule | Columns:
        if isinstance(index, slice):
            return self.take(index)
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return Schedule({knob: self.choices[knob][codes[index]] for knob, codes in self.codes.items()})

    def __iter__(self) -> Iterator[Schedule]:
        names = list(self.codes)
        values = [[self.choices[name][code] for code in self.codes[name].tolist()] for name in names]
        return (Schedule(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True))

    def take(self, which: Mask | Codes | slice) -> Columns:
        """The schedules that a mask, indices or a slice choose."""
        return self.like({knob: codes[which] for knob, codes in self.codes.items()})

    def like(self, codes: Mapping[str, Codes]) -> Columns:
        """Other schedules of the same choices."""
        made = Columns(self.choices, codes)
        made._tables = self._tables
        return made

    def joined(self, other: Columns) -> Columns:
        """These schedules, and then others of the same choices."""
        return self.like({name: np.concatenate([codes, other.codes[name]]) for name, codes in self.codes.items()})

    def replace(self, **knobs: KnobValue) -> Columns:
        """All schedules with some knobs set to one value each."""
        choices = dict(self.choices) | {knob: (value,) for knob, value in knobs.items()}
        fixed = {knob: np.zeros(self._length, np.intp) for knob in knobs}
        return Columns(choices, dict(self.codes) | fixed)

    def integer(self, knob: str) -> NDArray[np.int64]:
        """The column of an integer knob."""
        if knob not in self._decoded:
            self._decoded[knob] = self._table(knob, int, np.int64)[self.codes[knob]]
        column: NDArray[np.int64] = self._decoded[knob]
        return column

    def integers(self, knob: str) -> tuple[NDArray[np.int64], ...]:
        """The columns of a tuple knob."""
        if knob not in self._decoded:
            table = self._table(knob, None, np.int64)
            self._decoded[knob] = tuple(column[self.codes[knob]] for column in table)
        columns: tuple[NDArray[np.int64], ...] = self._decoded[knob]
        return columns

    def flag(self, knob: str) -> Mask:
        """Where a knob is neither False nor 0."""
        found: Mask = self._table(knob, bool, np.bool_)[self.codes[knob]]
        return found

    def equals(self, knob: str, value: KnobValue) -> Mask:
        """Where a knob has a value."""
        key = knob, ("equals", value)
        if key not in self._tables:
            self._tables[key] = np.array([choice == value for choice in self.choices[knob]], np.bool_)
        found: Mask = self._tables[key][self.codes[knob]]
        return found

    def _table(self, knob: str, convert: type[Any] | None, dtype: type[Any]) -> NDArray[Any]:
        """The choices of a knob as numbers; of tuples a row for each place."""
        key = knob, convert
        if key not in self._tables:
            values = self.choices[knob] if convert is None else [convert(value) for value in self.choices[knob]]
            self._tables[key] = np.ascontiguousarray(np.array(values, dtype).T)
        return self._tables[key]


# -- arithmetic for one and for many ----------------------------------------------------------------------------------


def where(condition: Number, then: Number, otherwise: Number) -> Number:
    """`then` where a condition holds, else `otherwise`; both are computed."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def larger(a: Number, b: Number) -> Number:
    """The larger of two numbers, place by place."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two numbers, place by place."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def no(condition: Number) -> Number:
    """Where a condition does not hold."""
    return np.logical_not(condition) if isinstance(condition, np.ndarray) else not condition


def divided(a: Number, b: Number) -> Number:
    """How many pieces of `b` cover `a`."""
    return -(-a // b)


def piecewise(
    schedules: Knobs, condition: Number, then: Callable[[Any], Number], otherwise: Callable[[Any], Number]
) -> Number:
    """`then` of the schedules for which a condition holds, `otherwise` of the others: for ones so different that
    neither formula is worth evaluating for all.
    """
    if not isinstance(schedules, Columns):
        return then(schedules) if condition else otherwise(schedules)
    mask = np.broadcast_to(condition, len(schedules))
    if mask.all():
        return then(schedules)
    if not mask.any():
        return otherwise(schedules)
    return _merged(mask, then(schedules.take(mask)), otherwise(schedules.take(~mask)))


def _merged(mask: Mask, then: Number, otherwise: Number) -> Number:
    """One array of values for the places of a mask and for the others; of tuples entry by entry."""
    if isinstance(then, tuple):
        return tuple(_merged(mask, a, b) for a, b in zip(then, otherwise, strict=True))
    values = np.empty(len(mask), np.result_type(then, otherwise))
    values[mask], values[~mask] = then, otherwise
    return values
