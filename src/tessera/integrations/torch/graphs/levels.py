"""Which nodes of a graph Tessera computes together: as few partitions as the nodes that torch computes allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx

from tessera.integrations.torch.graphs.nodes import is_random, is_view, is_writing, tensors_of

NUMBERS = frozenset(("full", "arange", "iota", "scalar_tensor", "zeros", "ones"))
"""Names of operators that make tensors of numbers, which kernels compute where they need them."""


@dataclass(frozen=True)
class PartitionStage:
    """What happens one after the other: nodes of torch's, then one partition, then views of its outputs."""

    eager: tuple[fx.Node, ...]
    partition: tuple[fx.Node, ...]
    """The partition's nodes, in the graph's order; views of inputs that several need are in each."""
    outputs: tuple[fx.Node, ...]
    views: tuple[fx.Node, ...]
    """Views of outputs, of inputs and of each other, made by torch for whoever reads them outside of partitions."""


def stages(
    order: Sequence[fx.Node], ours: Collection[fx.Node], written: Mapping[fx.Node, fx.Node] = MappingProxyType({})
) -> list[PartitionStage]:
    """The stages of a graph's nodes, of which those in `ours` are Tessera's. `written`: copies that are made where what
    they copy is computed, and are in no stage.
    """
    free = _free(order, ours)
    level = levels(order, ours, written)
    shared = _remade(order, ours)
    needed = _read_outside(order, ours, level, shared)
    for node in reversed(order):  # what a view that torch makes is made of
        if node in needed and is_view(node):
            needed.update(operand for operand in node.all_input_nodes if operand in ours)
    found = []
    for each in range(max(level.values(), default=-1) + 1):
        here = [node for node in order if level[node] == each]
        outputs = [node for node in here if node in needed and not is_view(node)]
        inside = _below(outputs, level, ours, shared, each)
        found.append(
            PartitionStage(
                tuple(
                    node
                    for node in here
                    if (node not in ours and node not in written) or (node in free and node in needed)
                ),
                tuple(node for node in order if node in inside),
                tuple(outputs),
                tuple(node for node in here if node in needed and is_view(node) and node not in free),
            )
        )
    return found


def _free(order: Iterable[fx.Node], ours: Collection[fx.Node]) -> set[fx.Node]:
    """Views of what no partition computes: torch may make them at once."""
    found: set[fx.Node] = set()
    for node in order:
        if node in ours and is_view(node):
            base = node.all_input_nodes[0]
            if base not in ours or base in found:
                found.add(node)
    return found


def levels(
    order: Sequence[fx.Node], ours: Collection[fx.Node], written: Mapping[fx.Node, fx.Node]
) -> dict[fx.Node, int]:
    """The number of each node's stage: one more than that of a partition whose result torch computes with. What draws
    random numbers or writes to memory stays in its order, but for `written` copies, which are made with what they copy.
    """
    free = _free(order, ours)
    computed = {node for node in ours if node not in free}
    level: dict[fx.Node, int] = {}
    random = barrier = last = 0
    for node in order:
        if node in written:
            level[node] = level[written[node]]
            continue
        mine = node in computed
        found = max(
            [
                level[operand] + (operand in computed and not mine)
                for operand in node.all_input_nodes
                if operand in level
            ],
            default=0,
        )
        found = max(found, barrier)
        if is_random(node):
            found = random = max(found, random)
        if is_writing(node):
            found = barrier = max(found, last)
        level[node] = found
        last = max(last, found + mine)
    return level


def _remade(order: Iterable[fx.Node], ours: Collection[fx.Node]) -> set[fx.Node]:
    """Views of what is there before all partitions, and tensors of numbers: each partition makes its own."""
    found: set[fx.Node] = set()
    for node in order:
        if node not in ours:
            continue
        name = getattr(node.target, "_opname", "")
        if (is_view(node) or name in NUMBERS) and all(
            operand.op == "placeholder" or operand in found or not tensors_of(operand)
            for operand in node.all_input_nodes
        ):
            found.add(node)
    return found


def _read_outside(
    order: Iterable[fx.Node], ours: Collection[fx.Node], level: Mapping[fx.Node, int], shared: Collection[fx.Node]
) -> set[fx.Node]:
    """Tessera's nodes whose results are read by torch, by the graph's result or by another partition."""
    return {
        node
        for node in order
        if node in ours
        and tensors_of(node)
        and any(user not in ours or (level[user] != level[node] and node not in shared) for user in node.users)
    }


def _below(
    outputs: Iterable[fx.Node],
    level: Mapping[fx.Node, int],
    ours: Collection[fx.Node],
    shared: Collection[fx.Node],
    number: int,
) -> set[fx.Node]:
    """What the outputs of one partition are computed of, inside of it."""
    found: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node in found or node not in ours or (level[node] != number and node not in shared):
            continue
        found.add(node)
        waiting += node.all_input_nodes
    return found
