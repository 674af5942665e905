"""The schedule of a kernel that nobody has tuned: a proven start, which the cost model may improve on.

The model errs by a tenth or two (`cost.py`), so that it overrules the start only where it promises more than that, and
only over measured ceilings. Extents of about the same size share one choice: new shapes cost no model time and compile
no new kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import Estimate
from tessera.target import Ceilings

CONVINCING = 1.3
"""The predicted gain from which a neighbour of the start is preferred to it."""
WORTH_COMPILING_S = 20e-6
"""Seconds a call below which a gain is not worth a kernel of its own: compiling one takes as long as 5000 such."""


class Estimator(Protocol):
    """`cost.RooflineModel` or `gpu_cost.GpuRooflineModel`: estimates over ceilings, None where there are none."""

    @property
    def ceilings(self) -> Ceilings | None: ...

    def estimate(self, problem: Any, schedule: Mapping[str, KnobValue]) -> Estimate:
        """What a legal schedule of the problem costs."""


@dataclass(frozen=True)
class ModelledChoice:
    """A schedule, and the model's estimate of it, which names the binding resource."""

    schedule: Schedule
    estimate: Estimate


def modelled_choice(space: Space[Any], model: Estimator) -> ModelledChoice:
    """The space's default, or its best neighbour by the model where that is predicted to be much faster."""
    start = space.default
    found = model.estimate(space.problem, start)
    if model.ceilings is None:
        return ModelledChoice(start, found)
    rivals = ((model.estimate(space.problem, schedule), schedule) for schedule in space.neighbours(start))
    estimate, schedule = min(rivals, key=lambda pair: (pair[0].seconds, str(pair[1])), default=(found, start))
    if estimate.seconds * CONVINCING < found.seconds and found.seconds - estimate.seconds > WORTH_COMPILING_S:
        return ModelledChoice(schedule, estimate)
    return ModelledChoice(start, found)
