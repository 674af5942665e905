"""A family in a file with a decomposition of its own: maps that write a workspace first, and copy it."""

from __future__ import annotations

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
from tessera.scheduling.families.rows import family as rows
from tessera.scheduling.language.expression import Recorder
from tessera.scheduling.lowering.spec import MapReduceSpec, Output


def _applies(case: DecomposableCall) -> bool:
    spec = case.spec
    return spec.reduced is None and len(spec.outputs) == 1 and len(spec.arguments) > 1


def _copying(spec: MapReduceSpec) -> MapReduceSpec:
    """The kernel that copies what `spec` makes."""
    (output,) = spec.outputs
    result = spec.arguments[output.argument]
    value = Recorder(None).load(0, result.dtype, result.axes)
    name = f"{spec.name}_back"
    return MapReduceSpec(name, (result, result), spec.outer, None, spec.lanes, (Output(1, value),))


def _steps(case: DecomposableCall) -> Steps:
    arrays = [
        Array(index, words[: len(words) // 2], words[len(words) // 2 :])
        for index, (_, words) in enumerate(case.arguments)
    ]
    *read, result = arrays
    there = Array("there", result.extents, contiguous_strides(result.extents))
    outward = replace(case.spec, name=f"{case.spec.name}_there")
    return Steps(
        (
            KernelStep(outward, (*read, there), case.extents),
            KernelStep(case.once(_copying), (there, result), case.extents, moves=True),
        ),
        {"there": Workspace(case.arguments[-1][0].dtype, result.extents)},
    )


DETOUR = Decomposition("detour", "nobody needs it", "call", _applies, _steps)

FAMILY = replace(rows.FAMILY, name="detour", decompositions=(DETOUR, *rows.FAMILY.decompositions))
