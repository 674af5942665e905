"""Which values of a row a kernel keeps in scratch memory between its passes along the row, and which it computes again.

x = gelu(a);  y = softmax(x):    pass 0: x, its maximum   pass 1: exp(x - m), their sum   pass 2: the results
                                 kept: x after pass 0, exp(x - m) after pass 1
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ops.counting import DEAR, operation_count
from tessera.scheduling.language.expression import APPROXIMATE, Value, post_order
from tessera.scheduling.lowering.spec import MapReduceSpec


def operation_cost(value: Value) -> int:
    """Vector instructions that one operation of an expression takes per vector of fp32."""
    return operation_count(value.operation, value.attributes == APPROXIMATE)


def kept_values(spec: MapReduceSpec) -> list[Value]:
    """Dear values that a later pass needs again: candidates for scratch memory, in the order of their making."""
    if spec.reduced is None:
        return []
    ordered = post_order(output.value for output in spec.outputs)
    needed: dict[Value, int] = {}
    for value in ordered:
        for argument in value.arguments:
            needed[argument] = max(needed.get(argument, 0), value.stage - value.is_reduction)
    kept: list[Value] = []
    for value in ordered:
        crosses = spec.reduced in value.axes and needed.get(value, 0) > value.stage
        if crosses and made_again(value, spec.reduced, kept) >= DEAR:
            kept.append(value)
    return kept


def made_again(value: Value, axis: str, kept: Sequence[Value]) -> int:
    """The vector instructions of computing a value anew at each place along `axis`, from what is kept."""
    seen: set[Value] = set()
    stack, total = [value], 0
    while stack:
        current = stack.pop()
        if current in seen or axis not in current.axes:
            continue
        seen.add(current)
        total += operation_cost(current)
        stack.extend(argument for argument in current.arguments if argument not in kept)
    return total
