"""Writes to inputs that partitions make themselves: the copies that AOTAutograd puts at the end of a graph.

`y = f(x); copy_(x, y)`: the partition that makes y writes it to x's memory. That is earlier than the copy stands in the
graph, so nothing may read x between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tessera.integrations.torch.graphs.levels import levels
from tessera.integrations.torch.graphs.nodes import is_view, tensors_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Write:
    """A copy that a partition makes: `value` into the memory of `target`, an input of the graph."""

    value: fx.Node
    target: fx.Node


def writes(order: Sequence[fx.Node], ours: Collection[fx.Node]) -> dict[fx.Node, Write]:
    """The copies among a graph's nodes that are left to partitions, by their nodes."""
    found: dict[fx.Node, Write] = {}
    values: set[fx.Node] = set()
    for node in order:
        write = _write(node, ours)
        if write is not None and write.value not in values:
            found[node] = write
            values.add(write.value)
    place = {node: number for number, node in enumerate(order)}
    while True:
        level = levels(order, ours, {node: write.value for node, write in found.items()})
        late = [
            node
            for node, write in found.items()
            if any(
                reader is not node and (level[reader] > level[write.value] or place[reader] > place[node])
                for reader in _readers(write.target, level)
            )
        ]
        if not late:
            return found
        for node in late:
            del found[node]


def replaced_in(found: Iterable[Write]) -> frozenset[fx.Node]:
    """The nodes that put a part into what ends up in the memory it comes from."""
    inside: set[fx.Node] = set()
    for write in found:
        node: Any = write.value
        chain: list[fx.Node] = []
        while isinstance(node, fx.Node) and node.target in _PUTS:
            chain.append(node)
            node = node.args[0]
        if node is write.target:
            inside.update(chain)
    return frozenset(inside)


_PUTS = frozenset((aten.slice_scatter.default, aten.select_scatter.default, aten.index_put.default))


def _write(node: fx.Node, ours: Collection[fx.Node]) -> Write | None:
    """The write of a copy to an input, of what a partition computes for nobody but the graph's other nodes."""
    if node.target is not aten.copy_.default or any(user.op != "output" for user in node.users):
        return None
    target, value = node.args[:2]
    if not isinstance(target, fx.Node) or not isinstance(value, fx.Node) or target.op != "placeholder":
        return None
    if value not in ours or is_view(value) or any(_is_returned(user) for user in value.users if user is not node):
        return None
    copies = sum(user.target is aten.copy_.default and user.args[0] is target for user in target.users)
    memory, made = tensors_of(target), tensors_of(value)
    same = len(made) == 1 and (memory[0].dtype, memory[0].shape) == (made[0].dtype, made[0].shape)
    return Write(value, target) if same and copies == 1 else None


def _is_returned(node: fx.Node) -> bool:
    """Whether a reader of a tensor is the graph's result, or shares the tensor's memory with that."""
    return node.op == "output" or (_shares(node) and any(_is_returned(user) for user in node.users))


def _readers(node: fx.Node, level: Mapping[fx.Node, int]) -> list[fx.Node]:
    """The nodes that read a tensor's memory, by way of views as well."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user in level and user not in found:
                found[user] = None
                if _shares(user):
                    waiting.append(user)
    return list(found)


def _shares(node: fx.Node) -> bool:
    """Whether a result may be an operand's memory."""
    if is_view(node) or node.op != "call_function":
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)
