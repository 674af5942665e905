"""Attention of few queries in two kernels: parts of the keys, and what joins them.

    part p of the keys:   means[p] = softmax(scores over its keys) V,   logarithms[p] = log(sum of its exponentials)
    joined:               sum over p of means[p] w[p] / sum over p of w[p],   w[p] = exp(logarithms[p] - the largest)

For fewer heads than workers or multiprocessors, where one query's keys are all the work there is. A part without a
visible key has the logarithm -inf and weighs nothing; where all are so the result is 0. (Dao et al., "Flash-Decoding
for long-context inference", 2023.) The order of additions is fixed by the number of parts.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tessera.lazy.structures.structure import contiguous_strides
from tessera.scheduling.families.decomposition import (
    Array,
    DecomposableCall,
    Decomposition,
    KernelStep,
    Steps,
    Workspace,
)
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, AttentionSpec, MapReduceSpec, Output

PARTS = "parts"
"""The knob that says how many parts there are."""
PART = "part"
"""The axis of partial results."""


def partial_spec(spec: AttentionSpec) -> AttentionSpec:
    """The kernel of the parts: the operands of `spec`, then means and logarithms, which have the axis `PART`."""
    count = min(output.argument for output in spec.outputs)
    dtype, rows = spec.accumulator.dtype, (PART, *spec.batch, "q")
    means = Argument(dtype, (*rows, "v"), (*[None] * len(rows), 1))
    logarithms = Argument(dtype, rows, (*[None] * (len(rows) - 1), 1))
    return replace(
        spec,
        name=f"{spec.name}_parts",
        arguments=(*spec.arguments[:count], means, logarithms),
        batch=(PART, *spec.batch),
        outputs=(Output(count, spec.accumulator), Output(count + 1, spec.accumulator)),
        logarithms=count + 1,
    )


def joining_spec(spec: AttentionSpec) -> MapReduceSpec:
    """The kernel that joins: means, logarithms (repeated along v), then the outputs of `spec`."""
    count = min(output.argument for output in spec.outputs)
    axes = (PART, *spec.batch, "q", "v")
    dtype, open_strides = spec.accumulator.dtype, (None,) * (len(axes) - 1)
    operands = Argument(dtype, axes, (*open_strides, 1)), Argument(dtype, axes, (*open_strides, 0))
    recorder = Recorder(PART)
    means, logarithms = (recorder.load(index, dtype, axes) for index in range(2))
    joined = _joined(recorder, means, logarithms)
    outputs = tuple(
        Output(2 + output.argument - count, recorder.cast(joined, spec.arguments[output.argument].dtype))
        for output in spec.outputs
    )
    return MapReduceSpec(
        name=f"{spec.name}_joined",
        arguments=(*operands, *spec.arguments[count:]),
        outer=(*spec.batch, "q"),
        reduced=PART,
        lanes="v",
        outputs=outputs,
    )


def _joined(recorder: Recorder, means: Value, logarithms: Value) -> Value:
    largest = recorder.reduce("max", logarithms)
    blind = recorder.compare("eq", largest, recorder.constant(-math.inf, largest))
    base = recorder.select(blind, recorder.constant(0.0, largest), largest)
    weights = recorder.exp(recorder.sub(logarithms, base), approximate=True)
    total = recorder.reduce("add", weights)
    none = recorder.compare("eq", total, recorder.constant(0.0, total))
    divisor = recorder.select(none, recorder.constant(1.0, total), total)
    return recorder.div(recorder.reduce("add", recorder.mul(means, weights)), divisor)


def _cut(spec: AttentionSpec) -> tuple[AttentionSpec, MapReduceSpec]:
    return partial_spec(spec), joining_spec(spec)


def _steps(case: DecomposableCall) -> Steps:
    spec, parts = case.spec, case.schedule.integer(PARTS)
    extents = {**case.extents, PART: parts}
    count = min(output.argument for output in spec.outputs)
    arguments = [
        Array(index, words[: len(words) // 2], words[len(words) // 2 :])
        for index, (_, words) in enumerate(case.arguments)
    ]
    rows = tuple([extents[axis] for axis in (PART, *spec.batch, "q")])
    columns, dtype, result = extents["v"], spec.accumulator.dtype, case.arguments[count][0].shape
    # As long as the workspace, and as many matrices as there are heads: so the work of the parts is counted once.
    seen = (*result[:-2], parts * result[-2], columns)
    partial, joining = case.once(_cut)
    wide, steps = (*rows, columns), contiguous_strides(rows)
    means = Array("means", wide, contiguous_strides(wide))
    return Steps(
        (
            KernelStep(
                partial,
                (*arguments[:count], means, Array("logarithms", rows, steps)),
                extents,
                case.schedule.replace(**{PARTS: 1}, **({"parallel": "batch"} if "parallel" in case.schedule else {})),
                min(case.workers, parts),
            ),
            KernelStep(
                joining, (means, Array("logarithms", wide, (*steps, 0)), *arguments[count:]), extents, moves=True
            ),
        ),
        {"means": Workspace(dtype, seen), "logarithms": Workspace(dtype, rows)},
    )


PARTS_OF_KEYS = Decomposition(
    name="parts-of-keys",
    why="the schedule cuts the keys of few heads into parts, for workers that would be idle",
    when="schedule",
    applies=lambda case: case.schedule.get(PARTS, 1) != 1,
    steps=_steps,
)
