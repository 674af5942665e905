"""Knobs and spaces: what a schedule may say, declared once by the stage that reads it, and its rules of legality."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tessera.errors import ScheduleError, TuneSpaceEmptyError
from tessera.scheduling.schedule import KnobValue, Schedule

Problem = TypeVar("Problem")

OPEN = frozenset({"tile"})
"""Knobs of which the choices are examples: users may ask for any value that the rules permit."""
EXAMINED = 20_000
"""Combinations of choices that are looked at before a space counts as empty; of larger spaces as many at random."""


@dataclass(frozen=True)
class Knob:
    """One tunable choice. `choices` are ordered, so that neighbours are the next smaller and larger choice."""

    name: str
    choices: tuple[KnobValue, ...]
    purpose: str

    def neighbours(self, value: KnobValue) -> tuple[KnobValue, ...]:
        """The choices next to `value`; all of them when `value` is none of them or the choices have no order."""
        if value not in self.choices:
            return self.choices
        if (not isinstance(value, int) and not isinstance(value, tuple)) or isinstance(value, bool):
            return tuple(choice for choice in self.choices if choice != value)
        index = self.choices.index(value)
        return tuple(self.choices[i] for i in (index - 1, index + 1) if 0 <= i < len(self.choices))


@dataclass(frozen=True)
class Rule(Generic[Problem]):
    """A named legality rule: `holds(schedule, problem)`; `reason` says what it protects."""

    name: str
    reason: str
    holds: Callable[[Schedule, Problem], bool]


@dataclass(frozen=True)
class Space(Generic[Problem]):
    """The schedules of one kernel: knobs, rules and the problem that the rules judge. `starts` are schedules that go
    together well beside the default: where knobs are fixed, the rest is taken from the first that is legal with them.
    """

    knobs: tuple[Knob, ...]
    rules: tuple[Rule[Problem], ...]
    problem: Problem
    default: Schedule
    starts: tuple[Schedule, ...] = ()
    by_name: Mapping[str, Knob] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {knob.name: knob for knob in self.knobs})

    @property
    def size(self) -> int:
        """Number of combinations of the knobs' choices, legal or not."""
        return math.prod(len(knob.choices) for knob in self.knobs)

    def violations(self, schedule: Schedule) -> tuple[str, ...]:
        """Names of the rules that `schedule` breaks; empty means legal."""
        return tuple(rule.name for rule in self.rules if not rule.holds(schedule, self.problem))

    def check(self, schedule: Schedule) -> Schedule:
        """`schedule` itself; E_SCHEDULE_ILLEGAL with the rules it breaks and the knobs it does not know."""
        unknown = [knob for knob in schedule if knob not in self.by_name]
        broken = [rule for rule in self.rules if not rule.holds(schedule, self.problem)] if not unknown else []
        if unknown or broken:
            raise ScheduleError(
                f"schedule {schedule} is not legal here",
                hints=[f"no knob is called {knob!r}; there are {', '.join(self.by_name)}" for knob in unknown]
                + [f"rule {rule.name}: {rule.reason}" for rule in broken],
            )
        return schedule

    def candidates(self) -> Iterator[Schedule]:
        """All legal schedules, in the order of the knobs' choices."""
        return (schedule for schedule in self._combinations(None) if not self.violations(schedule))

    def _combinations(self, most: int | None) -> Iterator[Schedule]:
        """All combinations of the choices, legal or not; where there are more than `most`, that many at random."""
        names = [knob.name for knob in self.knobs]
        if most is not None and self.size > most:
            generator = random.Random(0)
            for _ in range(most):
                yield Schedule({knob.name: generator.choice(knob.choices) for knob in self.knobs})
            return
        for values in itertools.product(*(knob.choices for knob in self.knobs)):
            yield Schedule(dict(zip(names, values, strict=True)))

    def neighbours(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """Legal schedules that differ from `schedule` in one knob by one step."""
        moves = (
            schedule.replace(**{knob.name: value})
            for knob in self.knobs
            for value in knob.neighbours(schedule[knob.name])
        )
        return tuple(move for move in moves if not self.violations(move))

    def draw(self, generator: random.Random, tries: int = 1000) -> Schedule:
        """A random legal schedule, drawn freely, or where `tries` draws find none by steps from the default;
        E_TUNE_SPACE_EMPTY where that is not legal, or has other choices, itself.
        """
        for _ in range(tries):
            schedule = Schedule({knob.name: generator.choice(knob.choices) for knob in self.knobs})
            if not self.violations(schedule):
                return schedule
        chosen = all(self.default.get(knob.name) in knob.choices for knob in self.knobs)
        if chosen and not self.violations(self.default):
            return self._wander(generator)
        raise TuneSpaceEmptyError(f"{tries} random schedules were all illegal", hints=self.why_empty())

    def _wander(self, generator: random.Random) -> Schedule:
        """The default with every knob drawn anew, one after another, twice, where that is legal."""
        schedule = self.default
        for _ in range(2):
            for knob in generator.sample(self.knobs, len(self.knobs)):
                moved = schedule.replace(**{knob.name: generator.choice(knob.choices)})
                schedule = schedule if self.violations(moved) else moved
        return schedule

    def why_empty(self) -> list[str]:
        """How many of the raw combinations (of large spaces some) each rule rejects, the strictest first: why a space
        is empty.
        """
        counts = dict.fromkeys((rule.name for rule in self.rules), 0)
        total = 0
        for schedule in self._combinations(EXAMINED):
            total += 1
            for name in self.violations(schedule):
                counts[name] += 1
        reasons = {rule.name: rule.reason for rule in self.rules}
        ranked = sorted(filter(counts.get, counts), key=counts.__getitem__, reverse=True)
        return [f"rule {name} rejects {counts[name]} of {total} combinations: {reasons[name]}" for name in ranked]

    def pinned(self, pins: Mapping[str, KnobValue]) -> Space[Problem]:
        """This space with some knobs fixed; the space itself where there are no pins.

        Raises ScheduleError (E_SCHEDULE_ILLEGAL) for a knob or value that is not in the space, TuneSpaceEmptyError
        (E_TUNE_SPACE_EMPTY) where no legal schedule has them.
        """
        unknown = [knob for knob in pins if knob not in self.by_name]
        if unknown:
            raise ScheduleError(
                f"pinned to {', '.join(f'{knob}={pins[knob]}' for knob in unknown)}, which this kernel does not have",
                hints=[f"its knobs are {', '.join(self.by_name)}"],
            )
        for knob, value in pins.items():
            choices = self.by_name[knob].choices
            if knob not in OPEN and value not in choices:
                raise ScheduleError(
                    f"pinned to {knob}={value}", hints=[f"{knob} is one of {', '.join(map(str, choices))}"]
                )
        return self.restricted({knob: [value] for knob, value in pins.items()}) if pins else self

    def restricted(self, choices: Mapping[str, Sequence[KnobValue]]) -> Space[Problem]:
        """This space with some knobs limited to choices (`op.matmul(..., tile_shape=)`, `search_space(...)`)."""
        knobs = tuple(
            Knob(knob.name, tuple(choices[knob.name]), knob.purpose) if knob.name in choices else knob
            for knob in self.knobs
        )
        narrowed = Space(knobs, self.rules, self.problem, self.default, self.starts)
        starts = [
            start.replace(**{name: values[0] for name, values in choices.items() if start[name] not in values})
            for start in (self.default, *self.starts)
        ]
        legal = next((start for start in starts if not narrowed.violations(start)), None)
        legal = legal or narrowed._legal_near(starts[0])
        if legal is None:
            asked = " and ".join(f"{name} in {list(values)}" for name, values in choices.items())
            raise TuneSpaceEmptyError(f"no legal schedule has {asked}", hints=narrowed.why_empty())
        return replace(narrowed, default=legal)

    def _legal_near(self, schedule: Schedule) -> Schedule | None:
        """A legal schedule that differs from an illegal one in as few knobs as is found quickly; None where none is
        among those and `EXAMINED` combinations.
        """
        for count in (1, 2):
            for changed in itertools.combinations(self.knobs, count):
                for values in itertools.product(*(knob.choices for knob in changed)):
                    near = schedule.replace(**{k.name: value for k, value in zip(changed, values, strict=True)})
                    if not self.violations(near):
                        return near
        return next((each for each in self._combinations(EXAMINED) if not self.violations(each)), None)
