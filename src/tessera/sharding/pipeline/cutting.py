"""Cutting an expression in two: what the first part computes, and saves so that the second need not compute it again.

A stage's expression is cut twice: between its results and all cotangents (F saves for the backward programs), and,
where a schedule has them apart, between the cotangents of inputs and those of weights (B saves for W).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from tessera.lazy.evaluation import evaluate
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, constant_node, joined, leaf_node
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Occurrence
from tessera.ops import OPERATORS

Values: TypeAlias = Mapping[Leaf, Leaf]
"""What stands in the place of leaves that are placeholders."""


class JoinedGraph:
    """Several expressions as one graph; parts that they share occur once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        structure, self._leaves = joined(nodes)
        self._order = structure.post_order()
        self.roots: tuple[int, ...] = self._order[-1].operands
        """The places of the expressions."""

    def below(self, places: Sequence[int]) -> set[int]:
        """All places that some depend on, and these."""
        found = set(places)
        for place in range(len(self._order) - 1, -1, -1):
            if place in found:
                found.update(self._order[place].operands)
        return found

    def saved(self, first: Sequence[int], second: Sequence[int], varying: Collection[Leaf]) -> list[int]:
        """The places that are computed for `first` and read by what only `second` needs. What depends on no `varying`
        leaf, and views, are left to be computed again: they take memory and no time.
        """
        earlier = self.below(first)
        varies = self._above(varying)
        later = self.below(second) - earlier
        queue = [place for place in second if place in earlier]
        queue += [each for place in later for each in self._order[place].operands if each in earlier]
        kept: dict[int, None] = {}
        while queue:
            place = queue.pop()
            occurrence = self._order[place]
            operator = occurrence.structure.operator
            if operator is None:
                continue
            if place not in varies or OPERATORS[operator.name].movement is not None:
                queue += occurrence.operands
            else:
                kept[place] = None
        return sorted(kept)

    def rebuilt(self, places: Sequence[int], given: Mapping[int, Leaf]) -> list[Node]:
        """The expressions at some places, over leaves in the place of those that are `given`."""
        made: dict[int, Any] = {place: leaf_node(leaf) for place, leaf in given.items()}
        for place in sorted(self._needed(places, given)):
            made[place] = self._node(self._order[place], made)
        return [made[place] for place in places]

    def _needed(self, places: Sequence[int], given: Collection[int]) -> set[int]:
        found: set[int] = set()
        queue = list(places)
        while queue:
            place = queue.pop()
            if place not in found and place not in given:
                found.add(place)
                queue += self._order[place].operands
        return found

    def _node(self, occurrence: Occurrence, made: Mapping[int, Any]) -> Any:
        structure, operands, leaf = occurrence
        if leaf is not None:
            return leaf_node(self._leaves[leaf])
        if structure.operator is None:
            return constant_node(structure)
        return apply(OPERATORS[structure.operator.name], structure.attributes, [made[each] for each in operands])

    def _above(self, varying: Collection[Leaf]) -> set[int]:
        """All places that depend on some leaves."""
        found: set[int] = set()
        for place, (_, operands, leaf) in enumerate(self._order):
            if (leaf is not None and self._leaves[leaf] in varying) or not found.isdisjoint(operands):
                found.add(place)
        return found


class CutExpressions:
    """Two lists of expressions over placeholders, of which the first saves values for the second."""

    def __init__(self, first: Sequence[Node], second: Sequence[Node], varying: Collection[Leaf]) -> None:
        self._count = len(first)
        self._second: list[Node] = list(second)
        self._kept: tuple[Leaf, ...] = ()
        self._graph = JoinedGraph([*first, *second]) if first and second else None
        self._places: list[int] = []
        if self._graph is not None:
            roots = self._graph.roots
            self._places = self._graph.saved(roots[: self._count], roots[self._count :], varying)
            first = [*first, *self._graph.rebuilt(self._places, {})]
        self._first = list(first)

    def run(self, values: Values) -> tuple[list[Leaf], Values]:
        """The results of the first expressions, and what the second ones read of them."""
        made = computed(self._first, values)
        saved = made[self._count :]
        if self._graph is not None:
            # Only now is known how saved values lie.
            self._kept = tuple(Placeholder(leaf.structure) for leaf in saved)
            given = dict(zip(self._places, self._kept, strict=True))
            self._second = self._graph.rebuilt(self._graph.roots[self._count :], given)
            self._graph = None
        return made[: self._count], dict(zip(self._kept, saved, strict=True))

    def second(self) -> list[Node]:
        """The second expressions, over what the first ones saved: known once these have run."""
        assert self._graph is None, "the first expressions run first"
        return self._second


def computed(nodes: Sequence[Node], values: Values) -> list[Leaf]:
    """The values of expressions over placeholders, evaluated together."""
    filled = []
    for node in nodes:
        structure, leaves = node.state
        filled.append(Node((structure, tuple([values.get(leaf, leaf) for leaf in leaves]))))
    evaluate(filled)
    return [node.leaves[0] for node in filled]
