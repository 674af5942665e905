"""Cost models by name: what says, before anything is measured, how long a schedule takes (docs/cost-model.md).

| name | what it is |
| --- | --- |
| `roofline` | operations and bytes against the ceilings of the machine: the slowest resource alone |
| `hardware` | what a kernel does, counted level by level, and what of it overlaps |
| `learned` | `hardware`, corrected by what measurements on this machine, or its kind, showed it to miss |
| a function | yours: seconds of a schedule |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from tessera.errors import ArgumentError
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.model.analytical import AnalyticalRoofline, Hardware
from tessera.tuning.model.base import CostModel, Modelled
from tessera.tuning.model.custom import Custom
from tessera.tuning.model.own import OwnLearned

__all__ = ["COST_MODELS", "CostModel", "CostModelName", "cost_model", "under"]

CostModelName: TypeAlias = str | Callable[..., float]
"""One of `COST_MODELS`, or a function from a schedule (and its features) to seconds."""

_NAMED: Final[dict[str, Callable[[], CostModel]]] = {
    "roofline": AnalyticalRoofline,
    "hardware": Hardware,
    "learned": OwnLearned,
}
COST_MODELS: Final = tuple(_NAMED)
"""The names there are."""


def cost_model(chosen: Any) -> CostModel:
    """The cost model of a name, of a function (`custom.Custom`), or itself. Raises ArgumentError for what is none."""
    if isinstance(chosen, str) and chosen in _NAMED:
        return _NAMED[chosen]()
    if isinstance(chosen, CostModel):
        return chosen
    if callable(chosen):
        return Custom(chosen)
    raise ArgumentError(
        f"cost_model={chosen!r} is no cost model",
        hints=[f"one of {', '.join(COST_MODELS)}, or a function from a schedule to seconds"],
    )


def under(problem: TuningProblem, chosen: Any) -> TuningProblem:
    """The problem with its predictions by another cost model, which takes the place of one that was chosen before. Its
    estimates stay the analytical ones. Raises as `cost_model`.
    """
    before = problem.predict
    posed = replace(problem, predict=before.problem.predict) if isinstance(before, Modelled) else problem
    return replace(problem, predict=Modelled(cost_model(chosen), posed))
