"""What schedules of one kernel the tuner may choose from: `search_space(...)`, `autotune(...)`.

@op.kernel
def depthwise(x, w):
    return op.depthwise_conv2d(x, w, padding=1)

schedule.search_space(tile_sizes=[(32, 32), (64, 64)], vectorize=[1, 2], pipeline_stages=[2, 3])
schedule.autotune(cost_model="roofline", max_trials=50)

Both speak of the kernel that is being traced, else of the `@op.kernel` that was defined last, unless `kernel` names
another, and give the space that it has by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tessera.compiler import entry
from tessera.compiler.tracing import TracedFunction, subject
from tessera.errors import ArgumentError, NoSubjectError, ScheduleError
from tessera.lazy.structure import Structure
from tessera.ops import views
from tessera.scheduling.schedule import KnobValue
from tessera.tuning.autotuner import Method
from tessera.tuning.config import Config

__all__ = ["SearchSpace", "autotune", "search_space"]

_SPELLINGS = {"tile_sizes": "tile", "tile_shape": "tile", "pipeline_stages": "pipeline_depth"}
_COST_MODELS = ("roofline",)
KEPT = 100
"""Choices that a space remembers: a kernel that is called with ever new sizes makes no end of them."""
_spaces: WeakKeyDictionary[TracedFunction, SearchSpace] = WeakKeyDictionary()


class SearchSpace:
    """The choices that the knobs of a kernel's heaviest launch have; those of other knobs are the kernel's own.

    `configs` are what was chosen for the last `KEPT` sizes of operands that the kernel met, oldest first: by the cost
    model, or where `autotune` asked for it by measuring at most `max_trials` schedules before the first call with that
    size.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.choices: dict[str, tuple[KnobValue, ...]] = {}
        self.cost_model = _COST_MODELS[0]
        self.max_trials: int | None = None
        self.measures = False
        self.configs: list[Config] = []

    def settle(self, structure: Structure) -> None:
        """Chooses the schedule of an expression that the kernel gave. Raises ScheduleError for a knob that it does not
        have, TuneSpaceEmptyError where no choice is legal, TuneFailedError where no candidate runs.
        """
        from tessera.compiler.tuning import heaviest_problem  # the compiler is loaded when it is needed

        problem = heaviest_problem(structure)
        if problem is None:
            return
        unknown = self.choices.keys() - set(problem.space.default)
        if unknown:
            raise ScheduleError(
                f"{self.name} has no knob {sorted(unknown)[0]!r}", hints=[f"it has {', '.join(problem.space.default)}"]
            )
        narrowed = replace(problem, space=problem.space.restricted(self.choices))  # type: ignore[attr-defined]
        method: Method = "on_device" if self.measures else "model"
        self.configs.append(entry.autotune.solve(narrowed, method, self.max_trials))
        del self.configs[:-KEPT]

    def __repr__(self) -> str:
        knobs = ", ".join(f"{knob} in {list(values)}" for knob, values in self.choices.items()) or "all knobs"
        how = (
            f"at most {self.max_trials or 'as many as the budget allows'} measured" if self.measures else "not measured"
        )
        return f"<search space of {self.name}: {knobs}; {self.cost_model} model, {how}>"


def search_space(kernel: TracedFunction | None = None, /, **choices: Iterable[KnobValue]) -> SearchSpace:
    """Limits knobs to choices, and gives the space. `tile_sizes` is the knob `tile`, `pipeline_stages` the knob
    `pipeline_depth`; any knob of the kernel may be named.

    Raises NoSubjectError (E_NO_SUBJECT) where there is no kernel, and ArgumentError (E_ARGUMENT) for a knob without
    choices.
    """
    space = _space_of(kernel)
    for name, values in choices.items():
        listed = tuple(_value(value) for value in values)
        if not listed:
            raise ArgumentError(f"search_space: {name} has no choices", hints=["leave it out, or list values"])
        space.choices[_SPELLINGS.get(name, name)] = listed
    return space


def autotune(
    kernel: TracedFunction | None = None, /, *, cost_model: str = "roofline", max_trials: int | None = None
) -> SearchSpace:
    """Has a kernel tuned by measuring: before its first call with operands of some size at most `max_trials` schedules
    of its space are compiled and timed, those that the cost model likes best, and the winner is remembered.

    Raises NoSubjectError (E_NO_SUBJECT) where there is no kernel, ArgumentError (E_ARGUMENT) for a cost model that
    there is not, and for a number of trials below one.
    """
    if cost_model not in _COST_MODELS:
        raise ArgumentError(f"autotune: cost_model={cost_model!r}", hints=[f"one of {', '.join(_COST_MODELS)}"])
    if max_trials is not None and views.integer(max_trials, "max_trials") < 1:
        raise ArgumentError(f"autotune: max_trials={max_trials}", hints=["at least 1"])
    space = _space_of(kernel)
    space.cost_model, space.max_trials, space.measures = cost_model, max_trials, True
    return space


def _space_of(kernel: TracedFunction | None) -> SearchSpace:
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


def _value(value: Any) -> KnobValue:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
