"""Knobs and spaces: what a schedule may say, declared once by the stage that reads it, and its rules of legality."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tessera.errors import ScheduleError, TuneSpaceEmptyError
from tessera.scheduling.language.columns import Columns, Mask
from tessera.scheduling.language.schedule import KnobValue, Schedule

Problem = TypeVar("Problem")

OPEN = frozenset({"tile"})
"""Knobs of which the choices are examples: users may ask for any value that the rules permit."""
OPEN_SIZE = 1 << 16
"""Largest size that such a value may have; rules are not made for what no kernel can mean."""

_BEYOND = 4
"""How far beyond the largest choice a value of another shape may lie, as a factor."""

EXAMINED = 20_000
"""Combinations of choices that are looked at before a space counts as empty; of larger spaces as many at random."""
SAMPLED = 4_000
"""Combinations by which it is counted what each rule rejects; of larger spaces as many at random."""
_AT_ONCE = 4096


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

    def admits(self, value: KnobValue) -> bool:
        """Whether rules may judge a value that comes from another shape or from a file: it is one of the choices, or
        of their kind and not far beyond them. Where choices are examples, any tuple of sizes that is as long.
        """
        if value in self.choices:
            return True
        if isinstance(value, tuple):
            like = [choice for choice in self.choices if isinstance(choice, tuple) and len(choice) == len(value)]
            highest = [OPEN_SIZE if self.name in OPEN else _BEYOND * max(sizes) for sizes in zip(*like, strict=True)]
            return bool(like) and all(1 <= size <= most for size, most in zip(value, highest, strict=True))
        numbers = [choice for choice in self.choices if type(choice) is int]
        return type(value) is int and bool(numbers) and min(numbers) <= value <= _BEYOND * max(numbers)


def is_like(schedule: Schedule, proven: Schedule) -> bool:
    """Whether values are so much like those of a proven schedule of the same kernel that rules may judge them: of the
    same kinds, and of sizes that choices have. False where the choices have to be looked at, which takes longer.
    """

    def like(value: KnobValue, known: KnobValue) -> bool:
        if value == known or type(value) is not type(known) or isinstance(known, (bool, str)):
            return value == known or (isinstance(value, bool) and isinstance(known, bool))
        if isinstance(value, tuple) and isinstance(known, tuple):
            return len(value) == len(known) and all(0 < size <= _BEYOND * max(64, *known) for size in value)
        return isinstance(value, int) and isinstance(known, int) and 0 <= value <= _BEYOND * max(8, known)

    return schedule.keys() == proven.keys() and all(like(value, proven[name]) for name, value in schedule.items())


@dataclass(frozen=True)
class Rule(Generic[Problem]):
    """A named legality rule: `holds(schedule, problem)`; `reason` says what it protects. `batched`: `holds` takes
    `Columns` as well, and gives a truth value for each of their schedules.
    """

    name: str
    reason: str
    holds: Callable[[Any, Problem], Any]
    batched: bool = False

    def mask(self, schedules: Columns, problem: Problem) -> Mask:
        """Which of many schedules keep the rule."""
        if not self.batched:
            return np.fromiter((self.holds(each, problem) for each in schedules), np.bool_, len(schedules))
        return np.broadcast_to(np.asarray(self.holds(schedules, problem), np.bool_), len(schedules))


def batched(*rules: Rule[Problem]) -> tuple[Rule[Problem], ...]:
    """Rules whose `holds` judges many schedules at once as well as one."""
    return tuple(replace(rule, batched=True) for rule in rules)


class Rejections(NamedTuple):
    """What rules make of combinations of choices: how many were looked at, how many are legal, and how many each rule
    rejects, the strictest first. One combination may break several rules.
    """

    examined: int
    legal: int
    by_rule: Mapping[str, int]


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

    def unlike(self, schedule: Schedule) -> tuple[str, ...]:
        """In which knobs a schedule that comes from elsewhere cannot be judged by rules: ones that there are not, that
        it lacks, or whose values are of another kind.
        """
        names = list(self.by_name.keys() ^ schedule.keys())
        names += [name for name, knob in self.by_name.items() if name in schedule and not knob.admits(schedule[name])]
        return tuple(sorted(names))

    def objections(self, schedule: Schedule) -> tuple[str, ...]:
        """What keeps a schedule that comes from elsewhere from being used here: knobs that are `unlike` those here,
        else the names of the rules that it breaks; none means that it is legal.
        """
        return tuple(f"knob {name}" for name in self.unlike(schedule)) or self.violations(schedule)

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
        for start in range(0, self.size, _AT_ONCE):
            yield from self.legal(self._columns(np.arange(start, min(start + _AT_ONCE, self.size))))

    def legal(self, schedules: Columns) -> Columns:
        """Those of many schedules that keep all rules."""
        kept = schedules
        for rule in self.rules:
            if rule.batched and len(kept):
                kept = kept.take(rule.mask(kept, self.problem))
        others = [rule for rule in self.rules if not rule.batched]
        if not others:
            return kept
        # Schedules are made once, and left at the first rule that they break.
        holds = (all(rule.holds(each, self.problem) for rule in others) for each in kept)
        return kept.take(np.fromiter(holds, np.bool_, len(kept)))

    def columns(self, most: int) -> Columns:
        """All combinations of the choices in their order, legal or not; where there are more than `most`, that many at
        random, always the same.
        """
        if self.size <= most:
            return self._columns(np.arange(self.size))
        generator = np.random.default_rng(0)
        return Columns(
            {knob.name: knob.choices for knob in self.knobs},
            {knob.name: generator.integers(len(knob.choices), size=most) for knob in self.knobs},
        )

    def _columns(self, places: NDArray[np.int64]) -> Columns:
        """The combinations at these places of their order."""
        codes = np.unravel_index(places, [len(knob.choices) for knob in self.knobs])
        choices = {knob.name: knob.choices for knob in self.knobs}
        return Columns(choices, dict(zip(choices, codes, strict=True)))

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

    def rejections(self) -> Rejections:
        """What the rules make of the raw combinations; of spaces larger than `SAMPLED`, of that many at random."""
        looked = self.columns(SAMPLED)
        kept = {rule.name: rule.mask(looked, self.problem) for rule in self.rules}
        counts = {name: len(looked) - int(np.count_nonzero(mask)) for name, mask in kept.items()}
        legal = np.logical_and.reduce([np.ones(len(looked), np.bool_), *kept.values()])
        ranked = sorted(filter(counts.get, counts), key=counts.__getitem__, reverse=True)
        return Rejections(len(looked), int(np.count_nonzero(legal)), {name: counts[name] for name in ranked})

    def why_empty(self) -> list[str]:
        """How many of the raw combinations each rule rejects, the strictest first: why a space is empty."""
        found = self.rejections()
        reasons = {rule.name: rule.reason for rule in self.rules}
        return [
            f"rule {name} rejects {count} of {found.examined} combinations: {reasons[name]}"
            for name, count in found.by_rule.items()
        ]

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
        """This space with some knobs limited to choices (`op.matmul(..., tile_shape=)`, `search_space(...)`).

        Raises TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) where no legal schedule has them.
        """
        found = self._restricted(choices)
        if found is None:
            asked = " and ".join(f"{name} in {list(values)}" for name, values in choices.items())
            hints = [*self._at_fault(choices), *self._narrowed(choices).why_empty()]
            raise TuneSpaceEmptyError(f"no legal schedule has {asked}", hints=hints)
        return found

    def _narrowed(self, choices: Mapping[str, Sequence[KnobValue]]) -> Space[Problem]:
        """This space with some knobs limited, whose default may be illegal."""
        knobs = tuple(
            Knob(knob.name, tuple(choices[knob.name]), knob.purpose) if knob.name in choices else knob
            for knob in self.knobs
        )
        return Space(knobs, self.rules, self.problem, self.default, self.starts)

    def _restricted(self, choices: Mapping[str, Sequence[KnobValue]]) -> Space[Problem] | None:
        """This space with some knobs limited, and a legal schedule of those as default; None where there is none."""
        narrowed = self._narrowed(choices)
        starts = [
            start.replace(**{name: values[0] for name, values in choices.items() if start[name] not in values})
            for start in (self.default, *self.starts)
        ]
        legal = next((start for start in starts if not narrowed.violations(start)), None)
        legal = legal or narrowed._legal_near(starts[0])
        return None if legal is None else replace(narrowed, default=legal)

    def _at_fault(self, choices: Mapping[str, Sequence[KnobValue]]) -> list[str]:
        """Which of several knobs that are limited permits nothing even alone; that none does where they do together."""
        if len(choices) < 2:
            return []
        alone = [
            f"knob {name} alone permits no legal schedule with {list(values)}"
            for name, values in choices.items()
            if self._restricted({name: values}) is None
        ]
        return alone or ["each of these knobs alone permits some schedule; together they do not"]

    def _legal_near(self, schedule: Schedule) -> Schedule | None:
        """A legal schedule that differs from an illegal one in as few knobs as is found quickly; None where none is
        among those and `EXAMINED` combinations.
        """
        near = (
            schedule.replace(**{knob.name: value for knob, value in zip(changed, values, strict=True)})
            for count in (1, 2)
            for changed in itertools.combinations(self.knobs, count)
            for values in itertools.product(*(knob.choices for knob in changed))
        )
        return self._first_legal(near) or next(iter(self.legal(self.columns(EXAMINED))), None)

    def _first_legal(self, schedules: Iterable[Schedule]) -> Schedule | None:
        """The first legal one of schedules. The rule that one broke is asked first of the next, which is like it."""
        rules = list(self.rules)
        for schedule in schedules:
            broken = next((place for place, rule in enumerate(rules) if not rule.holds(schedule, self.problem)), None)
            if broken is None:
                return schedule
            rules.insert(0, rules.pop(broken))
        return None
