"""From the specification of a packing to its problem on CPUs, for extents and workers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.scheduling.families.family import Poser, Problem
from tessera.scheduling.families.packing.lowering import PackingProblem
from tessera.scheduling.lowering.spec import PackingSpec, unit_axis
from tessera.target import Target


def packing_poser(spec: PackingSpec, target: Target) -> Poser:
    """What poses the problems of a packing for extents and workers."""
    (output,) = spec.outputs
    panels = spec.arguments[output.argument].panels
    assert panels is not None
    width, transposed = panels.width, unit_axis(output.value, spec.arguments, "n") == "k"

    def pose(extents: Mapping[str, int], workers: int) -> Problem:
        batch = math.prod([extents[axis] for axis in spec.batch])
        return PackingProblem(extents["n"], extents["k"], batch, width, output.value.dtype, transposed, target, workers)

    return pose
