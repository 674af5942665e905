"""What every cost model is: seconds for the schedules of a problem, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.tuning.interfaces import TuningProblem


@runtime_checkable
class CostModel(Protocol):
    """A way to predict; `name` stands where predictions are shown."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def doubt(self) -> float:
        """The gain over the default, as a fraction, that the model has to promise for the default to give way."""

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """Predicted seconds per call of each schedule, in their order; `schedules` are legal ones of the problem."""


@dataclass(frozen=True)
class Modelled:
    """The predictions of one model for one problem: the `predict` of a `TuningProblem`, and a `BatchPredict`."""

    model: CostModel
    problem: TuningProblem

    @property
    def doubt(self) -> float:
        """That of the model."""
        return self.model.doubt

    def __call__(self, schedule: Schedule) -> float:
        return float(self.many([schedule])[0])

    def many(self, schedules: Sequence[Schedule]) -> Seconds:
        """Seconds per call of each."""
        return self.model.seconds(self.problem, schedules)
