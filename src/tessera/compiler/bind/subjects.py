"""Subjects: a kernel of a program with one layout pattern, which is what gets scheduled, tuned and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias, TypeVar

from xdsl.ir import Operation

from tessera.compiler.bind.constants import panels_of
from tessera.compiler.bind.specs import SPECS, Pattern
from tessera.compiler.graph.program import KernelItem
from tessera.errors import ScheduleError
from tessera.ir.graph import GraphOperation
from tessera.lazy.policy import FAST, Policy
from tessera.ops.pins import KNOBS
from tessera.scheduling.families.attention.space import attention_problem
from tessera.scheduling.families.convolution.problem import convolution_problem
from tessera.scheduling.families.packing.lowering import PackingProblem
from tessera.scheduling.families.product.norms import row_values
from tessera.scheduling.families.product.problem import ContractionProblem
from tessera.scheduling.families.registry import Problem
from tessera.scheduling.families.rows.scratch import kept_values, made_again, operation_cost
from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.families.rows.transposed import transposed_axis
from tessera.scheduling.families.window.space import window_problem
from tessera.scheduling.language.expression import post_order
from tessera.scheduling.language.pressure import live_values
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import (
    QUAD,
    AttentionSpec,
    ContractionSpec,
    ConvolutionSpec,
    MapReduceSpec,
    PackingSpec,
    Spec,
    WindowSpec,
    exact_load,
    under_cast,
    unit_axis,
)
from tessera.target import Target

Poser: TypeAlias = Callable[[Mapping[str, int], int], Problem]
"""(extents, workers) -> the problem."""
P = TypeVar("P", ContractionProblem, MapReduceProblem)


class Subject:
    """A kernel with a layout pattern, for a device with several maths under a policy. There is one object for each of
    these, so identity is equality.
    """

    def __init__(self, item: KernelItem, pattern: Pattern, target: Target, policy: Policy = FAST) -> None:
        self.item, self.pattern, self._target, self._policy = item, pattern, target, policy

    @cached_property
    def spec(self) -> Spec:
        """The specification that lowerings take. Whether tf32 is permitted says the operator, or the policy for all."""
        spec = SPECS[self.item.family](self.item, self.pattern)
        if not isinstance(spec, ContractionSpec):
            return spec
        permitted = "tf32" if self._policy.tf32 else spec.math
        return replace(spec, math=permitted if self._policy.rewrites_arithmetic else None)

    @cached_property
    def pins(self) -> Schedule:
        """The knobs that the user pinned: by `pin` on any operator of the kernel, the tile by `tile_shape=` too.

        Raises ScheduleError (E_SCHEDULE_ILLEGAL) where two operators of the kernel ask for different values.
        """
        found: dict[str, KnobValue] = {}
        for operation in self.item.operation.body.block.ops:
            for knob, value in _asked(operation).items():
                if found.setdefault(knob, value) != value:
                    raise ScheduleError(
                        f"two operators of the kernel {self.item.name} are pinned to {knob}={found[knob]} and "
                        f"{knob}={value}",
                        hints=["pin one of them", "or pin fusion=False as well, so that they are kernels of their own"],
                    )
        return Schedule(found)

    def problem(self, extents: Mapping[str, int], workers: int) -> Problem:
        """What legality rules and cost models need to know, for these extents. On the path of binding."""
        return self._pose(extents, workers)

    @cached_property
    def _pose(self) -> Poser:
        return _POSERS[type(self.spec)](self.spec, self._target)


def _asked(operation: Operation) -> Mapping[str, KnobValue]:
    """The knobs that stand on an operation."""
    if not isinstance(operation, GraphOperation):
        return {}
    knobs = operation.attribute(KNOBS, "")
    assert isinstance(knobs, str)
    tile = {"tile": operation.integers("tile_shape")} if "tile_shape" in operation.attributes else {}
    return {**tile, **Schedule.parse(knobs)}


def _contraction_poser(spec: ContractionSpec, target: Target) -> Poser:
    raw_a, raw_b = under_cast(spec.a), under_cast(spec.b)
    a_contiguous, b_contiguous = unit_axis(spec.a, spec.arguments, ""), unit_axis(spec.b, spec.arguments, "")
    epilogue = len(post_order(output.value for output in spec.outputs)) - 1
    constant = exact_load(spec.b)
    packed = None if constant is None else spec.arguments[constant.argument].panels
    walks = max((value.stage for value in row_values(spec.a)), default=0)
    prologue = [value for value in post_order([spec.a]) if "k" in value.axes or value.is_reduction]

    some = ContractionProblem(
        m=1,
        n=1,
        k=1,
        batch=1,
        a_dtype=raw_a.dtype,
        b_dtype=raw_b.dtype,
        out_dtype=spec.outputs[0].value.dtype,
        accumulator=spec.accumulator.dtype,
        a_contiguous=a_contiguous,
        b_contiguous=b_contiguous,
        a_mapped=raw_a.operation != "load",
        b_mapped=packed is None and raw_b.operation != "load",
        outputs=len(spec.outputs),
        epilogue_operations=epilogue,
        target=target,
        workers=1,
        native_bf16=target.has_avx512bf16,
        b_panels=0 if packed is None else packed.width,
        quads=packed is not None and packed.group == QUAD,
        products=len(spec.products),
        a_walks=walks,
        a_instructions=sum(operation_cost(value) for value in prologue) if walks else 0,
        epilogue_live=max(1, live_values(post_order(output.value for output in spec.outputs))),
    )

    panels = lru_cache(maxsize=1 << 10)(lambda n: panels_of(spec, n, target))

    def pose(extents: Mapping[str, int], workers: int) -> Problem:
        shared = panels(extents["n"])
        return _like(
            some,
            m=extents["m"],
            n=extents["n"],
            k=extents["k"],
            shared_panels=0 if shared is None else shared[1].panels.width,
            shared_quads=shared is not None and shared[1].panels.group == QUAD,
            batch=math.prod([extents[axis] for axis in spec.batch]),
            workers=workers,
        )

    return pose


def _like(problem: P, **changes: int) -> P:
    """A problem with some fields changed. The constructor of a frozen dataclass, and `replace`, set field by field,
    which takes four times as long.
    """
    made = object.__new__(type(problem))
    vars(made).update(vars(problem), **changes)
    return made


def _map_reduce_poser(spec: MapReduceSpec, target: Target) -> Poser:
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
        return _like(
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


def _packing_poser(spec: PackingSpec, target: Target) -> Poser:
    (output,) = spec.outputs
    panels = spec.arguments[output.argument].panels
    assert panels is not None
    width, transposed = panels.width, unit_axis(output.value, spec.arguments, "n") == "k"

    def pose(extents: Mapping[str, int], workers: int) -> Problem:
        batch = math.prod([extents[axis] for axis in spec.batch])
        return PackingProblem(extents["n"], extents["k"], batch, width, output.value.dtype, transposed, target, workers)

    return pose


_POSERS: Mapping[type[Any], Callable[[Any, Target], Poser]] = {
    AttentionSpec: lambda spec, target: partial(attention_problem, spec, target),
    ContractionSpec: _contraction_poser,
    ConvolutionSpec: lambda spec, target: partial(convolution_problem, spec, target),
    MapReduceSpec: _map_reduce_poser,
    PackingSpec: _packing_poser,
    WindowSpec: lambda spec, target: partial(window_problem, spec, target),
}
"""Class of a specification -> what poses its problems."""
