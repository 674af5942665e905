"""The two models that know nothing but the machine: a plain roofline, and the count of what kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.tuning.interfaces import DOUBT, TuningProblem

ARITHMETIC: Final = ("FMA", "compute")
"""Of these the first that an estimate has: multiply-adds at their peak rate, else all computing."""
BANDWIDTHS: Final = ("L1", "L2", "L3", "DRAM", "shared memory", "HBM")


class Hardware:
    """What a kernel does, counted level by level: `scheduling.cost` on CPUs, `scheduling.gpu_cost` on GPUs."""

    name: Final = "hardware"
    doubt: Final = DOUBT

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """The seconds of the problem's estimates."""
        return problem.estimates(schedules).seconds


class AnalyticalRoofline:
    """Operations over the arithmetic peak, and bytes of each memory level over its bandwidth: the slowest of them, as
    if nothing else took time (Williams et al., "Roofline", CACM 52, 2009, over the levels as in Ilic et al.,
    "Cache-aware Roofline Model", IEEE CAL 13, 2014), and the launch.

    Bytes are what a schedule moves, so tiles and fusion count; latency, instruction issue, packing and occupancy do
    not.
    """

    name: Final = "roofline"
    doubt: Final = DOUBT

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """The seconds of the slowest resource; the problem's own predictions where its estimates have no terms."""
        found = problem.estimates(schedules)
        arithmetic = next((found.terms[name] for name in ARITHMETIC if name in found.terms), None)
        if arithmetic is None:
            return found.seconds
        slowest = arithmetic
        if not np.any(arithmetic) and "compute" in found.terms:
            slowest = found.terms["compute"]
        for name in BANDWIDTHS:
            if name in found.terms:
                slowest = np.maximum(slowest, found.terms[name])
        launch = found.terms.get("launch")
        return slowest if launch is None else slowest + launch
