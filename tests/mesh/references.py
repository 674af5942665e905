"""Expressions computed by the records' references, without a compiler: what one process gives, and what devices do
between exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tessera.lazy import evaluation
from tessera.lazy.devices import is_mesh
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Structure
from tessera.ops import OPERATORS, Operator
from tessera.sharding.execution import ShardedPlan


def value_of(node: Any) -> torch.Tensor:
    """What an expression over tensors of one device gives."""
    structure, leaves = node.state
    values: list[torch.Tensor] = []
    for below, operands, leaf in structure.post_order():
        if leaf is not None:
            values.append(to_torch(leaves[leaf]))
        elif below.operator is None:
            values.append(torch.tensor(below.value, dtype=below.dtype.torch))
        else:
            inputs = [_wide(values[place]) for place in operands]
            made = _applied(OPERATORS[below.operator.name], inputs, below)
            values.append(made.to(below.dtype.torch).reshape(below.shape).contiguous())
    return values[-1]


def _applied(record: Operator, inputs: Sequence[torch.Tensor], structure: Structure) -> torch.Tensor:
    if 0 in structure.shape:
        return torch.empty(structure.shape)
    if record.family == "convolution" and not all(each.numel() for each in inputs):
        return torch.zeros(structure.shape)  # torch convolves no empty images
    return record.reference(*inputs, **structure.named_attributes)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128) if value.is_complex() else value.double() if value.is_floating_point() else value


def _evaluate(nodes: Sequence[Node]) -> None:
    for node in nodes:
        structure, leaves = node.state
        if is_mesh(structure.device):
            (result,) = ShardedPlan(structure).run(leaves)
            node.store(result)
        else:
            node.store(from_torch(value_of(node)))


@contextmanager
def by_references() -> Iterator[None]:
    """Has everything evaluated by references meanwhile."""
    before = evaluation.set_evaluator(_evaluate)
    try:
        yield
    finally:
        evaluation.set_evaluator(before)
