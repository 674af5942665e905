"""Nodes: how leaves come together, the limit of pending operators, and the observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import Tensor, op
from tessera.dtypes import fp32
from tessera.lazy import node as nodes
from tessera.lazy.leaves.leaf import Leaf, scalar_leaf
from tessera.lazy.node import Node, joined, merge
from tessera.lazy.structures.interning import PENDING_LIMIT

Leaves: TypeAlias = tuple[Leaf, ...]

LEAVES = [scalar_leaf(float(number), fp32) for number in range(6)]
leaf_tuples = st.lists(st.sampled_from(LEAVES), unique=True).map(tuple)


@given(leaf_tuples, leaf_tuples)
def test_merged_leaves_hold_each_once_and_positions_find_them(first: Leaves, second: Leaves) -> None:
    merged, position = merge(first, second)
    assert merged[: len(first)] == first
    assert len(set(merged)) == len(merged)
    places = position if isinstance(position, tuple) else range(position, position + len(second))
    assert tuple(merged[place] for place in places) == second


@given(leaf_tuples, leaf_tuples)
def test_a_position_has_one_spelling(first: Leaves, second: Leaves) -> None:
    _, position = merge(first, second)
    if isinstance(position, tuple):
        assert position != tuple(range(position[0], position[0] + len(position)))


def test_a_pending_graph_past_the_limit_is_evaluated() -> None:
    a = op.tensor(torch.ones(2))
    x, halves = a, []
    for _ in range(PENDING_LIMIT + 5):
        x = x + 1
        halves.append(x)
    assert x.structure.size <= PENDING_LIMIT
    assert not halves[PENDING_LIMIT - 1].is_pending
    assert x.tolist() == [PENDING_LIMIT + 6.0] * 2


def test_a_maker_makes_every_pending_node() -> None:
    seen: list[nodes.State] = []

    def maker(node_class: type[Node]) -> Callable[[nodes.State], Node]:
        def made(state: nodes.State) -> Node:
            seen.append(state)
            return node_class(state)

        return made

    a = op.tensor(torch.ones(2))
    nodes.use_maker(maker)
    try:
        y = op.exp(a) + a
    finally:
        nodes.use_maker(None)
    op.exp(y)
    assert [structure.operator.name for structure, _ in seen if structure.operator] == ["exp", "add"]
    assert type(y) is Tensor
    assert y.state is seen[-1]


def test_joined_nodes_share_their_leaves() -> None:
    a, b = op.tensor(torch.ones(2)), op.tensor(torch.ones(2))
    structure, leaves = joined([a + b, b * 2])
    assert leaves == (*a.leaves, *b.leaves)
    assert joined([b + a, a * 2])[0] is structure
    assert [node.operands for node in structure.post_order()][-1] != ()
