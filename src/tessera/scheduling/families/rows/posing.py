"""From the specification of a map or a reduction to its problem on CPUs, for extents and workers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.scheduling.families.family import Poser, Problem, like
from tessera.scheduling.families.rows.scratch import kept_values, made_again, operation_cost
from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.families.rows.transposed import transposed_axis
from tessera.scheduling.language.expression import post_order
from tessera.scheduling.language.pressure import live_values
from tessera.scheduling.lowering.spec import MapReduceSpec
from tessera.target import Target


def rows_poser(spec: MapReduceSpec, target: Target) -> Poser:
    """What poses the problems of a map or a reduction for extents and workers."""
    first_output = min(output.argument for output in spec.outputs)
    values = post_order(output.value for output in spec.outputs)
    passes = max((output.value.stage for output in spec.outputs), default=0) + 1
    kept = kept_values(spec)
    live = max(1, sum(value.is_reduction for value in values), live_values(values))
    # What does not walk the reduced axis is computed once a row.
    walking = [x for x in values if spec.reduced is None or spec.reduced in x.axes or x.is_reduction]
    flops = sum(operation_cost(value) for value in walking)
    rows = transposed_axis(spec)

    some = MapReduceProblem(
        outer=1,
        reduced=1,
        lanes=1,
        by_rows=spec.reduced == spec.lanes,
        bytes_in=0,
        bytes_out=0,
        passes=passes,
        dear=len(kept),
        again=sum(made_again(value, spec.reduced or "", kept) for value in kept),
        live=live,
        flops=flops,
        target=target,
        workers=1,
    )
    # What is counted is not read.
    arguments = [(a.axes, a.dtype.itemsize if a.counted is None else 0) for a in spec.arguments]

    def pose(extents: Mapping[str, int], workers: int) -> Problem:
        sizes = [math.prod([extents[axis] for axis in axes]) * itemsize for axes, itemsize in arguments]
        return like(
            some,
            outer=math.prod([extents[axis] for axis in spec.outer]),
            reduced=extents[spec.reduced] if spec.reduced is not None else 1,
            lanes=extents[spec.lanes],
            bytes_in=sum(sizes[:first_output]),
            bytes_out=sum(sizes[first_output:]),
            workers=workers,
            rows=extents[rows] if rows is not None else 0,
        )

    return pose
