"""Many schedules of a space at once: all of it, some at random, what lies around others, and which of them are legal.

A thousand schedules take about as long as ten one by one, where the rules judge `Columns` (`Rule.batched`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.columns import Codes, Columns
from tessera.scheduling.language.knobs import Knob, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule

AnySpace = Space[Any]


class Batches:
    """The schedules of one space as `Columns` of one set of choices: those of the knobs, and the default's values of
    knobs that may have others.
    """

    def __init__(self, space: AnySpace) -> None:
        self.space = space
        self.choices: Mapping[str, tuple[KnobValue, ...]] = {
            knob.name: knob.choices
            if space.default.get(knob.name, knob.choices[0]) in knob.choices
            else (*knob.choices, space.default[knob.name])
            for knob in space.knobs
        }
        self._steps = {knob.name: _steps(knob, self.choices[knob.name]) for knob in space.knobs}
        self._none = Columns(self.choices, {knob.name: np.zeros(0, np.intp) for knob in space.knobs})

    def all(self) -> Columns:
        """Every combination of the knobs' choices, in their order, legal or not."""
        return self._none.like(self.space.columns(self.space.size).codes)

    def drawn(self, count: int, generator: np.random.Generator) -> Columns:
        """So many combinations at random, legal or not, and maybe twice."""
        return self._columns([generator.integers(len(knob.choices), size=count) for knob in self.space.knobs])

    def of(self, schedules: Sequence[Schedule]) -> Columns:
        """Schedules of this space, or ones whose values are the default's."""
        places = {name: {value: code for code, value in enumerate(values)} for name, values in self.choices.items()}
        return self._none.like(
            {name: np.array([table[each[name]] for each in schedules], np.intp) for name, table in places.items()}
        )

    def holds(self, schedule: Schedule) -> bool:
        """Whether the values of a schedule are among the choices."""
        return all(schedule.get(name) in values for name, values in self.choices.items())

    def varied(self, around: Columns, count: int, generator: np.random.Generator) -> Columns:
        """So many schedules made of those around by giving one to four knobs, drawn at random, other choices."""
        rows = generator.integers(len(around), size=count)
        changed = generator.random((len(self.space.knobs), count)) < _CHANGED / max(len(self.space.knobs), 1)
        codes = {}
        for place, knob in enumerate(self.space.knobs):
            fresh = generator.integers(len(knob.choices), size=count)
            codes[knob.name] = np.where(changed[place], fresh, around.codes[knob.name][rows])
        return around.like(codes)

    def around(self, schedules: Columns) -> Columns:
        """All that differs from one of the schedules in one knob by one step, legal or not."""
        taken: list[Codes] = []
        changes: list[tuple[str, Codes]] = []
        for name, (rows, codes) in self._steps.items():
            here = schedules.codes[name]
            for row in range(len(here)):
                found = codes[rows == here[row]]
                taken.append(np.full(len(found), row, np.intp))
                changes.append((name, found))
        picked = schedules.take(np.concatenate(taken) if taken else np.zeros(0, np.intp))
        start = 0
        for name, found in changes:
            picked.codes[name][start : start + len(found)] = found
            start += len(found)
        return picked

    def keys(self, schedules: Columns) -> NDArray[Any]:
        """A number for each schedule that no other of the space has, in the order of the knobs' choices."""
        most = math.prod(len(values) for values in self.choices.values())
        numbers: NDArray[Any] = np.zeros(len(schedules), np.int64 if most < 1 << 62 else object)
        for name, values in self.choices.items():
            numbers = numbers * len(values) + schedules.codes[name]
        return numbers

    def _columns(self, places: Sequence[Codes]) -> Columns:
        codes = {knob.name: place for knob, place in zip(self.space.knobs, places, strict=True)}
        return self._none.like(codes)


_CHANGED = 2.5
"""Knobs that are drawn anew in a variation, on average."""


def _steps(knob: Knob, values: tuple[KnobValue, ...]) -> tuple[Codes, Codes]:
    """The steps of one knob, as `Knob.neighbours` has them: (code, neighbour's code) for each."""
    count = len(knob.choices)
    places = np.arange(count)
    ordered = all(isinstance(value, int | tuple) and not isinstance(value, bool) for value in values)
    if ordered:
        pairs = [np.stack([places[1:], places[:-1]]), np.stack([places[:-1], places[1:]])]
    else:
        every = np.stack(np.meshgrid(places, places, indexing="ij")).reshape(2, -1)
        pairs = [every[:, every[0] != every[1]]]
    # A value that is none of the choices is next to all of them.
    pairs += [np.stack([np.full(count, code), places]) for code in range(count, len(values))]
    rows, codes = np.concatenate(pairs, axis=1)
    return rows, codes
