"""Reductions of few long rows on GPUs as two launches: chunks of the reduced axis, and what joins them.

    sum(x [1, 67108864])   ->   parts [1, 512] of 131072 elements each, then their sum

`scheduling.gpu_reduction` makes the two specifications; here they become calls over a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tessera.compiler.bind.arrays import Call, Shape, ShapedArrays, View
from tessera.compiler.bind.launches import Choice
from tessera.compiler.bind.specs import Pattern
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.lazy.structure import contiguous_strides
from tessera.scheduling.families.rows.gpu.chunks import CHUNK, PART, TwoSteps, partial_schedule, two_steps
from tessera.scheduling.families.rows.gpu.problem import map_reduce_gpu_problem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionSpec, MapReduceSpec, PackingSpec, Spec
from tessera.scheduling.model.gpu_resources import ceil_div
from tessera.target import Target

STEP = "step"
"""Where the item of a step keeps its subject, among its variants."""


@dataclass(frozen=True, eq=False)
class Chunked:
    """The two subjects that a reduction becomes, and the inputs that the second one takes."""

    first: Subject
    second: Subject
    inputs: tuple[int, ...]


def chunk_schedule(subject: Subject, call: Call, target: Target) -> Schedule | None:
    """The schedule of the first of two launches; None where one launch does as well, or has to do."""
    spec = subject.spec
    if not isinstance(spec, MapReduceSpec) or spec.reduced is None or subject.pins:
        return None
    schedule = partial_schedule(map_reduce_gpu_problem(spec, call.shaped.extents, target))
    return None if schedule is None or _chunked(subject, target) is None else schedule


def in_chunks(
    call: Call,
    choice: Choice,
    target: Target,
    new: Callable[[Shape, DType], View],
    choose: Callable[[Subject, Call], Schedule],
) -> Sequence[tuple[Call, Choice]]:
    """The two launches of a call whose schedule has `CHUNK`, over a workspace that `new` makes; `choose` gives the
    schedule of the second one.
    """
    made = _chunked(choice.subject, target)
    spec = choice.subject.spec
    assert made is not None
    assert isinstance(spec, MapReduceSpec)
    assert spec.reduced is not None
    count = min(output.argument for output in spec.outputs)
    parts = ceil_div(call.shaped.extents[spec.reduced], choice.schedule.integer(CHUNK))
    extents = {**call.shaped.extents, PART: parts}
    loaded, written = call.arguments[:count], call.arguments[count:]
    workspace = []
    for argument in _spec(made.first).arguments[count:]:
        shape = tuple([extents[axis] for axis in argument.axes])
        workspace.append((new(shape, argument.dtype), shape + contiguous_strides(shape)))
    first = step_call(made.first, (*loaded, *workspace), extents)
    second = step_call(made.second, (*workspace, *[loaded[index] for index in made.inputs], *written), extents)
    return [
        (first, Choice(made.first, choice.schedule, 1)),
        (second, Choice(made.second, choose(made.second, second), 1)),
    ]


class StepSubject(Subject):
    """A subject whose specification is one of the two that were made of another's. Its item has no other."""

    def __init__(self, item: KernelItem, spec: MapReduceSpec | AttentionSpec | PackingSpec, target: Target) -> None:
        if isinstance(spec, PackingSpec):
            pattern = Pattern(spec.arguments, spec.batch, None, "n", True)
        elif isinstance(spec, AttentionSpec):
            pattern = Pattern(spec.arguments, spec.batch, None, "v", True)
        else:
            pattern = Pattern(spec.arguments, spec.outer, spec.reduced, spec.lanes, False)
        super().__init__(item, pattern, target)
        self._spec = spec
        item.variants[STEP] = self

    @property
    def spec(self) -> Spec:
        """The specification that lowerings take."""
        return self._spec


def _spec(subject: Subject) -> MapReduceSpec:
    spec = subject.spec
    assert isinstance(spec, MapReduceSpec)
    return spec


def _chunked(subject: Subject, target: Target) -> Chunked | None:
    """The two subjects, made once; None where the reduction is not one that can be cut."""
    key = (subject, CHUNK)
    variants = subject.item.variants
    if key not in variants:
        steps = two_steps(_spec(subject))
        variants[key] = None if steps is None else _subjects(subject.item, steps, target)
    known = variants[key]
    assert known is None or isinstance(known, Chunked)
    return known


def _subjects(item: KernelItem, steps: TwoSteps, target: Target) -> Chunked:
    def subject(spec: MapReduceSpec) -> Subject:
        return StepSubject(replace(item, name=spec.name, variants={}), spec, target)

    return Chunked(subject(steps.first), subject(steps.second), steps.inputs)


def step_call(subject: Subject, arguments: Sequence[tuple[View, tuple[int, ...]]], extents: dict[str, int]) -> Call:
    """The call of a step over views with the extents and strides that their descriptors hold."""
    axes = tuple([argument.axes for argument in subject.pattern.arguments])
    strides = tuple([words[len(words) // 2 :] for _, words in arguments])
    return Call(subject.item, tuple(arguments), ShapedArrays(subject.pattern, extents, axes, strides))
