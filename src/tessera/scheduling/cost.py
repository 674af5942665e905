"""The cost model: a roofline over the memory levels that says how long a schedule takes and what holds it up.

The time of a kernel is that of its slowest worker: the slowest of arithmetic and of the traffic of each memory level,
a share of the others (they overlap, but not perfectly), packing, and the launch. Traffic is counted level by level as
in Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (ACM TOMS 43, 2016), and Williams et al.,
"Roofline" (CACM 52, 2009). It is built to rank schedules, not to predict times to the percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from tessera.scheduling.families import Problem, kernel_family
from tessera.scheduling.machine import LEVELS, Machine, Work, machine
from tessera.scheduling.schedule import KnobValue
from tessera.target import Ceilings, Target

Binding = Literal["compute", "L1", "L2", "L3", "DRAM", "HBM", "shared memory", "latency", "launch"]
BINDINGS: Final[tuple[Binding, ...]] = ("compute", "L1", "L2", "L3", "DRAM", "launch")

OVERLAP_LOSS: Final = 0.1
"""The part of every resource's time but the slowest's that is not hidden behind it; fitted to measured products."""

LAUNCH_S: Final = 0.25e-6
FORK_S: Final = 1.1e-6
"""Seconds of a call of a kernel, and of starting and joining the other workers (measured on torch's OpenMP pool)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one call, what holds it up, and the seconds that each resource would need alone.

    `terms` has the keys of `BINDINGS` and "packing", which is also contained in the levels it reads from and writes to
    for the choice of `binding`. `source` is that of the ceilings: "measured", or where they were taken from.
    """

    seconds: float
    binding: Binding
    terms: Mapping[str, float]
    source: str


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
        rates = self.machine(problem.workers)
        return _combined(kernel_family(problem).work(problem, schedule, rates), rates, problem.workers)


def _combined(work: Work, rates: Machine, workers: int) -> Estimate:
    seconds = {level: work.traffic.get(level, 0.0) / rates.byte_per_s[level] for level in LEVELS}
    packing = {level: work.packing.get(level, 0.0) / rates.byte_per_s[level] for level in LEVELS}
    running = {"compute": work.compute_s, **seconds}
    slowest = max(running.values())
    packing_s = work.packing_s + sum(packing.values())
    launch = LAUNCH_S + (FORK_S if workers > 1 else 0.0)
    total = slowest + OVERLAP_LOSS * (sum(running.values()) - slowest) + packing_s + launch
    charged: dict[Binding, float] = {
        "compute": work.compute_s + work.packing_s,
        "L1": seconds["L1"] + packing["L1"],
        "L2": seconds["L2"] + packing["L2"],
        "L3": seconds["L3"] + packing["L3"],
        "DRAM": seconds["DRAM"] + packing["DRAM"],
        "launch": launch,
    }
    binding = max(BINDINGS, key=charged.__getitem__)
    terms = MappingProxyType({**running, "packing": packing_s, "launch": launch})
    return Estimate(total, binding, terms, rates.source)
