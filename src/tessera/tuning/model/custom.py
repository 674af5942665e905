"""A user's own cost model: a function from a schedule to seconds."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tessera.errors import ArgumentError
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.tuning.interfaces import TuningProblem


class Custom:
    """Predictions by `function(schedule)`, or `function(schedule, estimate)` where it takes two positional arguments:
    the analytical `Estimate` of the schedule, whose `terms` are features to build on.

    What the function raises comes through as it is; ArgumentError where it returns no positive, finite number.
    """

    doubt: Final = 0.0
    """A user's word is taken."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._takes_estimate = _positional(function) >= 2

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """What the function gives for each schedule."""
        if not self._takes_estimate:
            return np.array([self._checked(self.function(each), each) for each in schedules], np.float64)
        pairs = zip(schedules, problem.estimates(schedules), strict=True)
        return np.array([self._checked(self.function(each, found), each) for each, found in pairs], np.float64)

    def _checked(self, value: Any, schedule: Schedule) -> float:
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ArgumentError(
            f"cost model {self.name} gave {value!r} for {schedule}", hints=["return seconds: a positive number"]
        )


def _positional(function: Callable[..., Any]) -> int:
    """How many positional arguments a function must be given; 1 where nobody can tell (a builtin)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty)
