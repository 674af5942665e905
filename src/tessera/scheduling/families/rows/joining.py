"""Reductions in two steps, on whatever device: the second, which joins what the first left of parts of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, MapReduceSpec, Output


def nearest_reductions(spec: MapReduceSpec) -> list[Value]:
    """The reductions nearest to the outputs, each once."""
    return [value for value in _epilogue(spec) if value.is_reduction]


def _epilogue(spec: MapReduceSpec) -> list[Value]:
    """What is computed of the reductions, and these, arguments before uses."""
    ordered: dict[Value, None] = {}
    stack = [(output.value, False) for output in reversed(spec.outputs)]
    while stack:
        value, expanded = stack.pop()
        if value in ordered:
            continue
        below = () if value.is_reduction else value.arguments
        if expanded or not below:
            ordered[value] = None
        else:
            stack.append((value, True))
            stack.extend((argument, False) for argument in reversed(below))
    return list(ordered)


def joining_spec(
    spec: MapReduceSpec, part: str, reductions: Sequence[Value], partial: Sequence[Argument], count: int
) -> tuple[MapReduceSpec, tuple[int, ...]]:
    """What joins `partial` results, which have an axis `part`, to those of a reduction: its specification, and which of
    the inputs of the reduction (the first `count` arguments) it reads, in the order of its arguments.
    """
    values = _epilogue(spec)
    needed = {value.argument for value in values if value.operation in ("load", "scalar")}
    counts = any(value.operation == "extent" for value in values)
    if counts:
        needed.add(next(i for i, each in enumerate(spec.arguments[:count]) if spec.reduced in each.axes))
    inputs = tuple(sorted(needed))
    place = {index: len(partial) + at for at, index in enumerate(inputs)}
    recorder, made = Recorder(part), dict[Value, Value]()
    for value in values:
        if value.is_reduction:
            index = reductions.index(value)
            loaded = recorder.load(index, partial[index].dtype, partial[index].axes)
            made[value] = recorder.reduce(value.kind, loaded)
        elif value.operation in ("load", "scalar"):
            attributes = (place[value.argument],)
            made[value] = recorder.make(value.operation, (), attributes, value.dtype, value.axes)
        else:
            below = [made[argument] for argument in value.arguments]
            axes = None if below else value.axes
            made[value] = recorder.make(value.operation, below, value.attributes, value.dtype, axes)
    start = len(partial) + len(inputs)
    results = [spec.arguments[output.argument] for output in spec.outputs]
    outputs = tuple(Output(start + at, made[output.value]) for at, output in enumerate(spec.outputs))
    second = replace(
        spec,
        name=f"{spec.name}_joined",
        arguments=(*partial, *(spec.arguments[index] for index in inputs), *results),
        reduced=part,
        lanes=part if spec.reduced == spec.lanes else spec.lanes,
        outputs=outputs,
        counted=spec.reduced if counts else None,
    )
    return second, inputs
