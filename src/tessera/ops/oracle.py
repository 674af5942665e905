"""The reference evaluation of any expression: each operator's `reference`, on torch tensors, floats in float64.

It is the oracle of tests, and shares nothing with the compiler but the records.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Occurrence
from tessera.ops.record import OPERATORS

_WIDEST = {"float": torch.float64, "complex": torch.complex128}


def reference(node: Node) -> torch.Tensor:
    """The value of an expression: float64 for floats, else the result's own dtype. Nothing is stored in the node."""
    structure, leaves = node.state
    given = [to_torch(leaf) for leaf in leaves]
    values: list[torch.Tensor] = []
    # Tensors that references make themselves lie where the operands do, whatever torch's default device is.
    with given[0].device if given else torch.device("cpu"):
        for occurrence in structure.post_order():
            values.append(_value(occurrence, given, values))
    return values[-1]


def _value(occurrence: Occurrence, given: Sequence[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    structure = occurrence.structure
    wide = _WIDEST.get(structure.dtype.kind, structure.dtype.torch)
    if occurrence.leaf is not None:
        return given[occurrence.leaf].to(wide)
    if structure.operator is None:
        return torch.tensor(structure.value, dtype=wide)
    operands = [values[index] for index in occurrence.operands]
    result: torch.Tensor = OPERATORS[structure.operator.name].reference(*operands, **structure.named_attributes)
    return result.to(wide)


def evaluate(nodes: Sequence[Node]) -> None:
    """An evaluator for `lazy.evaluation.set_evaluator`: each node gets its reference value, rounded to its dtype."""
    for node in nodes:
        node.store(from_torch(reference(node).to(node.dtype.torch).contiguous()))
