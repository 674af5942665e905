"""The cost model of GPUs: a roofline with waves, occupancy, stages and L2 that says how long a schedule takes, and why.

The interface is that of `cost.RooflineModel`. It is built to rank schedules: the tests hold the ranks that are
published, and what must be true whatever the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tessera.scheduling.families.registry import gpu_model
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import Bandwidth, Estimates
from tessera.scheduling.model.gpu_estimate import GpuEstimate
from tessera.scheduling.model.gpu_machine import gpu_machine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target import Ceilings, Target

LOOKED_AT: Final = 64
"""Schedules that pins are tried on."""


class GpuRooflineModel:
    """Estimates for one GPU. `ceilings`: measured ones, which replace published figures; None: published ones."""

    def __init__(self, ceilings: Ceilings | None, target: Target) -> None:
        self.measured, self.target = ceilings, target
        self.machine = gpu_machine(target, ceilings)

    @property
    def ceilings(self) -> Ceilings | None:
        """What the rates come from; `choice.modelled_choice` trusts a model that has any."""
        return self.measured or self.target.ceilings

    def estimate(
        self, problem: Any, schedule: Mapping[str, KnobValue], resources: BlockResources | None = None
    ) -> GpuEstimate:
        """What a legal schedule of the problem costs; with `resources` as the compiler reported them, else predicted.

        KeyError for a problem of a family that has no model on GPUs, and for a schedule that lacks one of the knobs
        tile, warps and pipeline_depth (rows: whole_row).
        """
        chosen = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        return gpu_model(problem).estimate(problem, chosen, self.machine, resources)

    def estimates(self, problem: Any, schedules: Sequence[Schedule]) -> Estimates:
        """What legal schedules cost, in their order."""
        return Estimates.of([self.estimate(problem, schedule) for schedule in schedules])

    def completed(self, space: Space[Any], pins: Schedule) -> Schedule:
        """The fastest of the default of a space and of the schedules that are worth a look, these with some knobs
        pinned. KeyError for problems of a family that has no model.
        """
        liked = gpu_model(space.problem).best(space.problem, LOOKED_AT, self.machine)
        found = (space.default, *(space.default.replace(**each.schedule).replace(**pins) for each in liked))
        legal = [each for each in dict.fromkeys(found) if not space.violations(each)]
        return min(legal, key=lambda each: self.estimate(space.problem, each).seconds)

    def bandwidths(self, nbytes: float, workers: int) -> tuple[Bandwidth, Bandwidth]:
        """That of L2, or of memory where so many bytes do not stay in it; and that of memory, where caches are cold."""
        rates = self.machine
        hbm = Bandwidth("HBM", rates.hbm_byte_per_s, rates.sources["HBM"])
        l2 = Bandwidth("L2", rates.l2_byte_per_s, rates.sources["L2"])
        return (l2 if nbytes <= rates.l2_bytes else hbm), hbm
