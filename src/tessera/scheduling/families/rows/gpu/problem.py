"""What the rules and the cost of maps and reductions on GPUs judge by, and what a schedule takes of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import MapReduceSpec
from tessera.scheduling.model.gpu_resources import BlockResources, size_step
from tessera.target import Target
from tessera.target.facts import GpuLimits

OPERATION_COST: Mapping[str, int] = MappingProxyType(
    {
        "load": 0, "constant": 0, "scalar": 0, "extent": 0, "position": 1, "reduce": 2,
        "exp": 6, "exp2": 5, "log": 8, "rsqrt": 6, "sqrt": 8, "div": 9, "tanh": 20, "erf": 20, "pow": 40,
        "expm1": 20, "log1p": 20, "sin": 30, "cos": 30,
    }
)  # fmt: skip
"""Instructions of a warp per element, where it is not one: special functions start every eighth clock ("CUDA C++
Programming Guide", throughput of native arithmetic instructions); exact division, erf and tanh are short programs."""

_BASE_REGISTERS = 16
"""Registers of a thread beside the tile's values: addresses, masks, counters; as ptxas was seen to take."""
_IN_THE_MAKING = 0.4
"""Registers per element for what is made of kept values: the compiler works through a tile piece by piece."""


@dataclass(frozen=True)
class GpuRowsProblem:
    """What legality and cost depend on.

    `outer` is the number of rows (of the last outer axis: `rows`, 0 where there is none), `reduced` the extent of the
    reduced axis (1 for a map), `lanes` that of the lane axis, `by_rows` whether these two are one. `bytes_in`,
    `bytes_out` are the compulsory traffic, `passes` the walks along a row that is not held; `kept` 32-bit values per
    element are needed by more than one of them, `sums` are carried along one. `operations` per element are weighted by
    what they cost. `itemsize` is
    that of the narrowest buffer along the lanes, and `alignment` the bytes that divide its rows, at most 16.
    """

    outer: int
    rows: int
    reduced: int
    lanes: int
    by_rows: bool
    bytes_in: int
    bytes_out: int
    passes: int
    kept: int
    sums: int
    operations: int
    itemsize: int
    alignment: int
    target: Target

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.outer, self.reduced, self.lanes

    @property
    def workers(self) -> int:
        """One, the device."""
        return 1

    @property
    def limits(self) -> GpuLimits:
        """What bounds a block and a multiprocessor."""
        assert self.target.gpu is not None
        return self.target.gpu

    @property
    def walks(self) -> bool:
        """Whether a reduced axis outside the lanes is walked."""
        return not self.by_rows and self.reduced > 1

    @property
    def elements(self) -> int:
        """Elements of the iteration space."""
        return max(self.outer, 1) * max(self.lanes, 1) * (1 if self.by_rows else max(self.reduced, 1))


def map_reduce_gpu_problem(spec: MapReduceSpec, extents: Mapping[str, int], target: Target) -> GpuRowsProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    first_output = min(output.argument for output in spec.outputs)
    sizes = [
        math.prod(extents[axis] for axis in argument.axes) * argument.dtype.itemsize for argument in spec.arguments
    ]
    along = [argument for argument in spec.arguments if spec.lanes in argument.axes]
    itemsize = min((argument.dtype.itemsize for argument in along), default=4)
    unit = all(argument.stride(spec.lanes) == 1 for argument in along)
    shared = math.gcd(16, extents[spec.lanes] * itemsize)
    passes, kept, sums, operations = _body(spec)
    return GpuRowsProblem(
        outer=math.prod(extents[axis] for axis in spec.outer),
        rows=extents[spec.outer[-1]] if spec.outer else 0,
        reduced=extents[spec.reduced] if spec.reduced is not None else 1,
        lanes=extents[spec.lanes],
        by_rows=spec.reduced == spec.lanes,
        bytes_in=sum(sizes[:first_output]),
        bytes_out=sum(sizes[first_output:]),
        passes=passes,
        kept=kept,
        sums=sums,
        operations=operations,
        itemsize=itemsize,
        # Without a stride of 1 each element is a transaction of its own, whatever divides what.
        alignment=(16 if extents[spec.lanes] == math.prod(extents.values()) else shared) if unit else itemsize,
        target=target,
    )


def of_its_size(problem: GpuRowsProblem) -> GpuRowsProblem:
    """The largest problem of the size class of this one: new shapes get known schedules, and compile no new kernels."""
    outer, rows, lanes = (size_step(extent) for extent in (problem.outer, problem.rows, problem.lanes))
    reduced = lanes if problem.by_rows else size_step(problem.reduced)
    largest = replace(problem, outer=outer, rows=rows, lanes=lanes, reduced=reduced)
    growth = largest.elements / problem.elements
    return replace(
        largest,
        bytes_in=size_step(int(problem.bytes_in * growth)),
        bytes_out=size_step(int(problem.bytes_out * growth)),
    )


@lru_cache(maxsize=512)
def _body(spec: MapReduceSpec) -> tuple[int, int, int, int]:
    """(passes, values kept from pass to pass, reductions of one pass, weighted operations per element)."""
    values = post_order(output.value for output in spec.outputs)
    last = max((output.value.stage for output in spec.outputs), default=0)
    uses: dict[Value, list[int]] = {}
    for value in values:
        for argument in value.arguments:
            uses.setdefault(argument, []).append(value.stage - value.is_reduction)
    wide = [value for value in values if spec.lanes in value.axes and not value.is_reduction and value in uses]
    # What only a later pass needs is made, or loaded, there.
    kept = [sum(min(uses[value]) <= stage < max(uses[value]) for value in wide) for stage in range(last + 1)]
    sums = [sum(value.is_reduction and value.stage == stage + 1 for value in values) for stage in range(last + 1)]
    words = max(max(value.dtype.itemsize for value in values) // 4, 1)
    # What does not vary along the lanes is computed once a row.
    heavy = [value for value in values if spec.lanes in (value.arguments[0] if value.is_reduction else value).axes]
    operations = sum(OPERATION_COST.get(value.operation, 1) for value in heavy)
    return last + 1, words * max(kept, default=0), words * max(sums, default=0), operations


def tile_registers(problem: GpuRowsProblem, schedule: Schedule) -> float:
    """Registers of a thread that hold the tile: what passes keep, sums that a walk carries, and what is being made."""
    rows, width = schedule.integers("tile")
    walked = problem.walks or (problem.by_rows and not schedule["whole_row"])
    words = max(problem.kept + (problem.sums if walked else 0) + _IN_THE_MAKING, 1.0)
    return words * rows * width / (schedule.integer("warps") * problem.limits.warp_size)


def predicted_resources(problem: GpuRowsProblem, schedule: Schedule) -> BlockResources:
    """What a block takes before any compiler is asked; partial results of warps meet in shared memory."""
    rows, warps = schedule.integers("tile")[0], schedule.integer("warps")
    most = problem.limits.max_registers_per_thread
    needed = -(-int(tile_registers(problem, schedule) + _BASE_REGISTERS) // 8) * 8
    shared = 4 * rows * warps if problem.by_rows or problem.walks else 0
    return BlockResources(min(needed, most), 8 * max(needed - most, 0), shared, warps)
