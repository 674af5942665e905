"""Spaces of kernels: what `schedule.search_space`, `schedule.autotune` and `@op.autotune` say of a kernel, and how its
schedules are chosen by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tessera.compiler import entry
from tessera.compiler.trace.tracing import TracedFunction, subject
from tessera.errors import ArgumentError, NoSubjectError, ScheduleError, TuneSpaceEmptyError
from tessera.lazy.structures.structure import Structure
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.options import options
from tessera.tuning.search.listed_space import ListedSpace

_SPELLINGS = {"tile_sizes": "tile", "tile_shape": "tile", "pipeline_stages": "pipeline_depth"}
KEPT = 100
"""Choices that a space remembers: a kernel that is called with ever new sizes makes no end of them."""
_spaces: WeakKeyDictionary[TracedFunction, SearchSpace] = WeakKeyDictionary()


class SearchSpace:
    """The choices that the knobs of a kernel's heaviest launch have; those of other knobs are the kernel's own.

    `configs` are what was chosen for the last `KEPT` sizes of operands that the kernel met, oldest first: by the cost
    model, or where `autotune` asked for it by measuring at most `max_trials` schedules, in about `budget_s` seconds,
    before the first call with that size. `listed`, where it is not empty, are the only schedules there are, each said
    by the knobs that differ from the default. Winners are kept in the cache named `cache`; without one those of a
    kernel that is limited in any way stay apart from those of other kernels.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.choices: dict[str, tuple[KnobValue, ...]] = {}
        self.listed: tuple[Schedule, ...] = ()
        self.cache: str | None = None
        self.cost_model: Any = None
        self.max_trials: int | None = None
        self.budget_s: float | None = None
        self.measures = False
        self.configs: list[Config] = []

    def settle(self, structure: Structure) -> None:
        """Chooses the schedule of an expression that the kernel gave. Raises ScheduleError for a knob that it does not
        have, TuneSpaceEmptyError where no choice is legal, TuneFailedError where no candidate runs.
        """
        from tessera.compiler.tune.tuning import heaviest_problem  # the compiler is loaded when it is needed

        problem = heaviest_problem(structure)
        if problem is None:
            return
        method = "on_device" if self.measures else "model"
        how = options(method, self.max_trials, self.budget_s, self.cost_model)
        narrowed = self._narrowed(problem)
        config = entry.autotune.solve(narrowed, how, kept_in=self._kept_in(), permits=self._permits)
        self.configs.append(config)
        del self.configs[:-KEPT]

    def _narrowed(self, problem: TuningProblem) -> TuningProblem:
        """The problem over the schedules that are left."""
        known = problem.space.default.keys()
        for knob in (*self.choices, *(knob for listed in self.listed for knob in listed)):
            if knob not in known:
                raise ScheduleError(f"{self.name} has no knob {knob!r}", hints=[f"it has {', '.join(known)}"])
        space: Any = problem.space
        if self.choices:
            space = space.restricted(self.choices)
        if not self.listed:
            return replace(problem, space=space)
        legal, illegal = [], []
        for listed in self.listed:
            try:
                legal.append(space.restricted({knob: [value] for knob, value in listed.items()}).default)
            except TuneSpaceEmptyError as error:
                illegal += [f"{listed}: {hint}" for hint in error.hints[:1]]
        if not legal:
            raise TuneSpaceEmptyError(f"none of the configs of {self.name} is legal here", hints=illegal)
        return replace(problem, space=ListedSpace(legal))

    def _permits(self, schedule: Schedule) -> bool:
        """Whether a schedule that is remembered keeps to the choices."""
        return all(schedule.get(knob) in values for knob, values in self.choices.items())

    def _kept_in(self) -> str | None:
        """The cache of the winners. Those of limited kernels would be poor choices for others, so they lie apart."""
        if self.cache is not None or not (self.choices or self.listed):
            return self.cache
        limits = repr((sorted(self.choices.items()), sorted(map(str, self.listed))))
        return f"limited-{hashlib.sha256(limits.encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        knobs = ", ".join(f"{knob} in {list(values)}" for knob, values in self.choices.items()) or "all knobs"
        if self.listed:
            knobs = f"{len(self.listed)} configs"
        how = (
            f"at most {self.max_trials or 'as many as the budget allows'} measured" if self.measures else "not measured"
        )
        model = getattr(self.cost_model, "__name__", self.cost_model) or "hardware"
        return f"<search space of {self.name}: {knobs}; {model} model, {how}>"


def search_space(kernel: TracedFunction | None = None, /, **choices: Iterable[KnobValue]) -> SearchSpace:
    """Limits knobs to choices, and gives the space. `tile_sizes` is the knob `tile`, `pipeline_stages` the knob
    `pipeline_depth`; any knob of the kernel may be named.

    Raises NoSubjectError (E_NO_SUBJECT) where there is no kernel, and ArgumentError (E_ARGUMENT) for a knob without
    choices. A knob that the kernel does not have (E_SCHEDULE_ILLEGAL), and choices of which none is legal
    (E_TUNE_SPACE_EMPTY, with knobs and rules), are found at its first call, when its operands are known.
    """
    space = space_of(kernel)
    for name, values in choices.items():
        space.choices[_SPELLINGS.get(name, name)] = _listed(name, values)
    return space


def autotune(
    kernel: TracedFunction | None = None,
    /,
    *,
    cost_model: Any = None,
    max_trials: int | None = None,
    budget_s: float | None = None,
) -> SearchSpace:
    """Has a kernel tuned by measuring: before its first call with operands of some size at most `max_trials` schedules
    of its space are compiled and timed, those that the cost model likes best, for about `budget_s` seconds
    (TESSERA_TUNE_BUDGET unless given), and the winner is remembered. `cost_model` is as in `tessera.autotune`.

    Raises NoSubjectError (E_NO_SUBJECT) where there is no kernel, ArgumentError (E_ARGUMENT) for a cost model that
    there is not, and for a number of trials or seconds that is not positive.
    """
    options("on_device", max_trials, budget_s, cost_model)  # what is wrong with them is said here
    space = space_of(kernel)
    space.cost_model, space.max_trials, space.budget_s, space.measures = cost_model, max_trials, budget_s, True
    return space


def schedules_of(configs: Iterable[Mapping[str, Any] | str]) -> tuple[Schedule, ...]:
    """Schedules as users list them: mappings from knob to value, or the text that a schedule prints itself as.

    Raises ArgumentError for what is neither, and ScheduleError for text that is no schedule.
    """
    found = []
    for config in configs:
        knobs: object = Schedule.parse(config) if isinstance(config, str) else config
        if not isinstance(knobs, Mapping) or not knobs:
            raise ArgumentError(f"{config!r} is no config", hints=["for example dict(tile=(64, 64, 64), unroll=2)"])
        found.append(Schedule({_SPELLINGS.get(str(knob), str(knob)): _value(value) for knob, value in knobs.items()}))
    if not found:
        raise ArgumentError("configs is empty", hints=["leave it out, or list at least one"])
    return tuple(found)


def space_of(kernel: TracedFunction | None) -> SearchSpace:
    """The space of a kernel, else of the one that is being traced or was defined last."""
    kernel = kernel if kernel is not None else subject()
    if kernel is None:
        raise NoSubjectError(
            "there is no kernel that this could speak of",
            hints=[
                "define one with @op.kernel first, or call it inside of one",
                "or name it: search_space(kernel, ...)",
            ],
        )
    if not isinstance(kernel, TracedFunction):
        raise ArgumentError(f"{kernel!r} is no kernel", hints=["decorate the function with @op.kernel"])
    space = _spaces.get(kernel)
    if space is None:
        space = _spaces[kernel] = SearchSpace(getattr(kernel, "__name__", "kernel"))
        kernel.on_trace = space.settle
    return space


def _listed(name: str, values: Any) -> tuple[KnobValue, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(f"search_space: {name}={values!r} is no list of choices", hints=[f"{name}=[{values!r}]"])
    listed = tuple(_value(value) for value in values)
    if not listed:
        raise ArgumentError(f"search_space: {name} has no choices", hints=["leave it out, or list values"])
    return listed


def _value(value: Any) -> KnobValue:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
