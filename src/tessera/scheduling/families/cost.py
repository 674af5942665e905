"""The cost model: a roofline over the memory levels that says how long a schedule takes and what holds it up.

The time of a kernel is that of its slowest worker: the slowest of arithmetic and of the traffic of each memory level,
a share of the others (they overlap, but not perfectly), packing, and the launch. Traffic is counted level by level as
in Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (ACM TOMS 43, 2016), and Williams et al.,
"Roofline" (CACM 52, 2009). It is built to rank schedules, not to predict times to the percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from tessera.errors import UnsupportedTargetError
from tessera.scheduling.families.family import Problem
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.columns import Columns, Knobs, Number, larger
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import LEVELS, PARTS, Bandwidth, Binding, Estimate, Estimates, Seconds
from tessera.scheduling.model.machine import DRAM, Machine, Work, machine
from tessera.target import Ceilings, Target

__all__ = ["BINDINGS", "Binding", "Estimate", "Estimates", "RooflineModel"]

BINDINGS: Final[tuple[Binding, ...]] = ("compute", "L1", "L2", "L3", "DRAM", "latency", "launch")

OVERLAP_LOSS: Final = 0.1
"""The part of every resource's time but the slowest's that is not hidden behind it; fitted to measured products."""

LAUNCH_S: Final = 0.25e-6
"""Seconds of a call of a kernel; `Machine.wake_s` are those of starting and joining the other workers."""


class RooflineModel:
    """Estimates for one CPU. `ceilings` None: rates are estimated from the target, and the estimates say so."""

    def __init__(self, ceilings: Ceilings | None, target: Target) -> None:
        self.ceilings, self.target = ceilings, target
        self._machines: dict[int, Machine] = {}

    def machine(self, workers: int) -> Machine:
        """The rates of one of `workers` workers."""
        if workers not in self._machines:
            self._machines[workers] = machine(self.ceilings, self.target, workers)
        return self._machines[workers]

    def estimate(self, problem: Problem, schedule: Mapping[str, KnobValue]) -> Estimate:
        """What a legal schedule of the problem costs. KeyError for a schedule that lacks one of the space's knobs."""
        chosen = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        rates = self.machine(problem.workers)
        seconds, terms, charged = _combined(_work(problem, chosen, rates), rates, problem.workers)
        binding = max(BINDINGS, key=charged.__getitem__)
        return Estimate(float(seconds), binding, MappingProxyType(terms), rates.source)

    def traffic(self, problem: Problem, schedule: Schedule) -> dict[str, float]:
        """Bytes that all workers together find in and write to each of `LEVELS`, packing included, if each has as much
        to do as the one with the most. Levels that the problem's family does not count are missing.
        """
        work = _work(problem, schedule, self.machine(problem.workers))
        moved = [float(beside + before) for beside, before in zip(work.traffic, work.packing, strict=True)]
        counted = kernel_family(problem).counted
        return {
            level: problem.workers * nbytes for level, nbytes in zip(LEVELS, moved, strict=True) if level in counted
        }

    def estimates(self, problem: Problem, schedules: Sequence[Schedule]) -> Estimates:
        """What legal schedules of the same knobs cost, in their order; as `estimate`, but a thousand in the time of a
        few dozen.
        """
        columns, rates = Columns.of(schedules), self.machine(problem.workers)
        if not len(columns):
            return Estimates(np.zeros(0), {}, {}, rates.source)
        seconds, terms, charged = _combined(_work(problem, columns, rates), rates, problem.workers)

        def column(value: Number) -> Seconds:
            return np.broadcast_to(np.asarray(value, np.float64), len(columns))

        return Estimates(
            column(seconds),
            {name: column(value) for name, value in terms.items()},
            {name: column(value) for name, value in charged.items()},
            rates.source,
        )

    def bandwidths(self, nbytes: float, workers: int) -> tuple[Bandwidth, Bandwidth]:
        """That of the nearest memory that holds a worker's share of so many bytes, of all workers together; and that of
        main memory, where caches are cold. Raises UnsupportedTargetError where ceilings have not been measured.
        """
        if self.ceilings is None:
            raise UnsupportedTargetError(
                "this CPU's ceilings have not been measured: `tessera quickstart` measures them"
            )
        rates = self.machine(workers)
        warm, cold = (
            Bandwidth(LEVELS[place], rates.bandwidth(place) * workers, rates.source)
            for place in (int(rates.home(nbytes / workers)), DRAM)
        )
        return warm, cold


def _work(problem: Problem, schedules: Knobs, rates: Machine) -> Work:
    return kernel_family(problem).work(problem, schedules, rates)


def _combined(work: Work, rates: Machine, workers: int) -> tuple[Number, dict[str, Number], dict[Binding, Number]]:
    """Seconds in all, by resource, and by what each binding is judged by: packing counts where its traffic goes."""
    speeds = [rates.byte_per_s[level] for level in LEVELS]
    traffic = [nbytes / speed for nbytes, speed in zip(work.traffic, speeds, strict=True)]
    packing = [nbytes / speed for nbytes, speed in zip(work.packing, speeds, strict=True)]
    slowest, together = work.compute_s, work.compute_s
    for each in traffic:
        slowest, together = larger(slowest, each), together + each
    packing_s = work.packing_s + sum(packing)
    launch = LAUNCH_S + (rates.wake_s if workers > 1 else 0.0)
    total = slowest + OVERLAP_LOSS * (together - slowest) + packing_s + work.exposed_s + launch
    terms = {"compute": work.compute_s, **{name: work.parts[name] for name in PARTS}}
    terms |= {
        **dict(zip(LEVELS, traffic, strict=True)),
        "packing": packing_s,
        "latency": work.exposed_s,
        "launch": launch,
    }
    charged: dict[Binding, Number] = {
        "compute": work.compute_s + work.packing_s,
        "L1": traffic[0] + packing[0],
        "L2": traffic[1] + packing[1],
        "L3": traffic[2] + packing[2],
        "DRAM": traffic[3] + packing[3],
        "latency": work.exposed_s,
        "launch": launch,
    }
    return total, terms, charged
