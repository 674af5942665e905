"""Masks that hide the future, written as a comparison of positions.

    flash_attention(q, k, v, c, iota[:, None] >= iota)   ->   flash_attention(q, k, v, c) {causal}

Kernels then neither compute the mask nor look at it. Only where there are as many queries as keys, which the rule notes
as a guard: `causal` means that the last query sees all keys.
"""

from __future__ import annotations

from typing import Final

from xdsl.ir import SSAValue

from tessera.ir.graph.operations import GraphOperation
from tessera.rewrite.engine import Rewriter, dims_of
from tessera.rewrite.guards import require
from tessera.rewrite.rules.algebra import made_by

QUERIES, KEYS = -2, -1
"""The dimensions of a mask."""
SHOWN: Final = {("ge", QUERIES, KEYS), ("le", KEYS, QUERIES)}
HIDDEN: Final = {("lt", QUERIES, KEYS), ("gt", KEYS, QUERIES)}
"""Comparisons of positions along two dimensions that say which keys are seen, and which are not."""


def hide_future(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    """Recognizes the mask, and drops it."""
    q, k, v, scale, *mask = operation.inputs
    if not mask or operation.attribute("causal", False):
        return None
    inverse = made_by(mask[0], "logical_not")
    comparison = mask[0].owner if inverse is None else inverse.inputs[0].owner
    if not isinstance(comparison, GraphOperation) or len(comparison.inputs) != 2:
        return None
    found = comparison.operator, *(_counted(operand) for operand in comparison.inputs)
    if found not in (SHOWN if inverse is None else HIDDEN):
        return None
    require(operation, [((dims_of(q)[-2],), (dims_of(k)[-2],))])
    return rewriter.create("flash_attention", [q, k, v, scale], {"causal": True})


def _counted(value: SSAValue) -> int | None:
    """The dimension, from the last, along which a value is the positions 0, 1, ...; None for other values."""
    names = dims_of(value)
    while (moved := made_by(value, "reshape") or made_by(value, "cast")) is not None:
        value = moved.inputs[0]
    # What has one dimension has the same elements in order under any shape; those of a cast are small integers.
    along = [place for place, name in enumerate(names) if name != "1"]
    if made_by(value, "iota") is None or len(along) != 1:
        return None
    return along[0] - len(names)
