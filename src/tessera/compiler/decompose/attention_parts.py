"""Attention whose keys are cut into parts as two launches over a workspace: the parts, and what joins them.

`scheduling.attention_parts` makes the two specifications; here they become calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.compiler.bind.arrays import Call, Shape, View
from tessera.compiler.bind.launches import Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.gpu_chunks import StepSubject, step_call
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.lazy.structure import contiguous_strides
from tessera.scheduling.families.attention.parts import PART, PARTS, joining_spec, partial_spec
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionSpec
from tessera.target import Target


@dataclass(frozen=True, eq=False)
class Cut:
    """The two subjects that attention becomes."""

    partial: Subject
    joining: Subject


def in_parts(
    call: Call,
    choice: Choice,
    target: Target,
    new: Callable[[Shape, DType], View],
    joining: Callable[[DType, Shape], KernelItem],
    choose: Callable[[Subject, Call], Choice],
) -> tuple[Launch, Launch]:
    """The two launches of a call whose schedule has several parts, over a workspace that `new` makes; `joining` gives
    the item that the second one is reported as, `choose` how that runs.
    """
    spec, parts = choice.subject.spec, choice.schedule.integer(PARTS)
    assert isinstance(spec, AttentionSpec)
    extents = {**call.shaped.extents, PART: parts}
    count = min(output.argument for output in spec.outputs)
    loaded, written = call.arguments[:count], call.arguments[count:]
    rows = tuple([extents[axis] for axis in (PART, *spec.batch, "q")])
    columns, dtype, result = extents["v"], spec.accumulator.dtype, written[0][0].shape
    # As long as the workspace, and as many matrices as there are heads: so the work of the parts is counted once.
    means = new((*result[:-2], parts * result[-2], columns), dtype)
    logarithms = new(rows, dtype)
    subjects = _cut(choice.subject, spec, target, lambda: joining(dtype, means.shape))
    wide, steps = (*rows, columns), contiguous_strides(rows)
    first = step_call(
        subjects.partial,
        (*loaded, (means, wide + contiguous_strides(wide)), (logarithms, rows + steps)),
        extents,
    )
    second = step_call(
        subjects.joining,
        ((means, wide + contiguous_strides(wide)), (logarithms, (*wide, *steps, 0)), *written),
        extents,
    )
    schedule = choice.schedule.replace(parts=1, parallel="batch")
    partial = Choice(subjects.partial, schedule, min(choice.workers, parts))
    return Launch(first, partial, call), Launch(second, choose(subjects.joining, second), call)


def _cut(subject: Subject, spec: AttentionSpec, target: Target, joining: Callable[[], KernelItem]) -> Cut:
    """The two subjects, made once."""
    known = subject.item.variants.get((subject, PARTS))
    if not isinstance(known, Cut):
        partial, joined = partial_spec(spec), joining_spec(spec)
        known = subject.item.variants[subject, PARTS] = Cut(
            StepSubject(replace(subject.item, name=partial.name, variants={}), partial, target),
            StepSubject(replace(joining(), name=joined.name, variants={}), joined, target),
        )
    return known


def is_cut(schedule: Schedule) -> bool:
    """Whether a schedule cuts keys into parts."""
    return schedule.get(PARTS, 1) != 1
