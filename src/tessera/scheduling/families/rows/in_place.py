"""Maps that may be written over what they read: y = f(x) where y lies as x does."""

from __future__ import annotations

from collections.abc import Set

from tessera.scheduling.language.expression import post_order
from tessera.scheduling.lowering.spec import MapReduceSpec


def reads_before(spec: MapReduceSpec, sources: Set[int], target: int) -> bool:
    """Whether a kernel is a map, and what a block of it reads of `sources` is read for the output `target` or one
    before: outputs of a block are stored one after the other, and what several need is read once.
    """
    if spec.reduced is not None:
        return False
    for output in spec.outputs:
        if any(value.operation == "load" and value.argument in sources for value in post_order([output.value])):
            return True
        if output.argument == target:
            break
    read = {value.argument for value in post_order([each.value for each in spec.outputs]) if value.operation == "load"}
    return not read & sources
